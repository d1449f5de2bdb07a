//! Decodes model configurations.

use std::collections::BTreeMap;

use oip_types::{
    ModelConfig, ServiceError,
    model_config::{
        Accelerator, ConfigParameter, DynamicBatching, EnsembleScheduling, EnsembleStep,
        ExecutionAccelerators, InputConfig, InputFormat, InstanceGroup, InstanceKind, Optimization,
        OutputConfig, QueuePolicy, Reshape, ResponseCache, TimeoutAction, TransactionPolicy, VersionPolicy,
        Warmup, WarmupData, WarmupInput,
    },
};

use crate::proto::{
    self, model_config::SchedulingChoice, model_input::Format, model_instance_group::Kind,
    model_queue_policy, model_version_policy::PolicyChoice, model_warmup::input::InputDataType,
};

/// Decodes a model's configuration. Unknown enum values are decoded as the default value.
///
/// # Errors
/// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when a datatype is unknown, or when a field
/// that must not be negative is negative.
pub fn decode_config(message: proto::ModelConfig) -> Result<ModelConfig, ServiceError> {
    let (mut dynamic_batching, mut ensemble_scheduling) = (None, None);
    match message.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            dynamic_batching = Some(dynamic_batching_of(batching)?);
        }
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            ensemble_scheduling = Some(EnsembleScheduling {
                step: ensemble.step.into_iter().map(step).collect(),
            });
        }
        None => {}
    }
    let parameter = |(name, parameter): (String, proto::ModelParameter)| {
        let string_value = parameter.string_value;
        (name, ConfigParameter { string_value })
    };
    Ok(ModelConfig {
        name: message.name,
        platform: message.platform,
        backend: message.backend,
        runtime: message.runtime,
        version_policy: version_policy(message.version_policy),
        max_batch_size: count("max_batch_size", message.max_batch_size)?,
        input: each(message.input, input)?,
        output: each(message.output, output)?,
        instance_group: each(message.instance_group, instance_group)?,
        optimization: optimization(message.optimization),
        default_model_filename: message.default_model_filename,
        dynamic_batching,
        ensemble_scheduling,
        parameters: message.parameters.into_iter().map(parameter).collect(),
        model_warmup: each(message.model_warmup, warmup)?,
        model_transaction_policy: TransactionPolicy {
            decoupled: message
                .model_transaction_policy
                .is_some_and(|policy| policy.decoupled),
        },
        response_cache: ResponseCache {
            enable: message.response_cache.is_some_and(|cache| cache.enable),
        },
    })
}

fn each<M, T>(messages: Vec<M>, read: impl Fn(M) -> Result<T, ServiceError>) -> Result<Vec<T>, ServiceError> {
    messages.into_iter().map(read).collect()
}

fn count(what: &str, found: i32) -> Result<u32, ServiceError> {
    let wrong = |_| ServiceError::invalid(format!("{what}: expected a number from 0, found {found}"));
    u32::try_from(found).map_err(wrong)
}

fn datatype(tensor: &str, found: i32) -> Result<oip_types::DataType, ServiceError> {
    let known = proto::DataType::try_from(found).ok();
    known
        .and_then(|known| oip_types::DataType::from_config_name(known.as_str_name()))
        .ok_or_else(|| {
            let name = tensor_core::QuotedName(tensor);
            ServiceError::invalid(format!(
                "{name}: expected the number of a datatype, found {found}"
            ))
        })
}

fn reshape(message: Option<proto::ModelTensorReshape>) -> Option<Reshape> {
    message.map(|message| Reshape { shape: message.shape })
}

fn version_policy(message: Option<proto::ModelVersionPolicy>) -> VersionPolicy {
    match message.and_then(|message| message.policy_choice) {
        None => VersionPolicy::default(),
        Some(PolicyChoice::Latest(latest)) => VersionPolicy::Latest {
            num_versions: latest.num_versions,
        },
        Some(PolicyChoice::All(_)) => VersionPolicy::All {},
        Some(PolicyChoice::Specific(specific)) => VersionPolicy::Specific {
            versions: specific.versions,
        },
    }
}

fn input(message: proto::ModelInput) -> Result<InputConfig, ServiceError> {
    Ok(InputConfig {
        data_type: datatype(&message.name, message.data_type)?,
        format: match message.format() {
            Format::None => InputFormat::None,
            Format::Nhwc => InputFormat::Nhwc,
            Format::Nchw => InputFormat::Nchw,
        },
        name: message.name,
        dims: message.dims,
        reshape: reshape(message.reshape),
        is_shape_tensor: message.is_shape_tensor,
        allow_ragged_batch: message.allow_ragged_batch,
        optional: message.optional,
    })
}

fn output(message: proto::ModelOutput) -> Result<OutputConfig, ServiceError> {
    Ok(OutputConfig {
        data_type: datatype(&message.name, message.data_type)?,
        name: message.name,
        dims: message.dims,
        reshape: reshape(message.reshape),
        label_filename: message.label_filename,
        is_shape_tensor: message.is_shape_tensor,
    })
}

fn instance_group(message: proto::ModelInstanceGroup) -> Result<InstanceGroup, ServiceError> {
    Ok(InstanceGroup {
        kind: match message.kind() {
            Kind::Auto => InstanceKind::Auto,
            Kind::Gpu => InstanceKind::Gpu,
            Kind::Cpu => InstanceKind::Cpu,
            Kind::Model => InstanceKind::Model,
        },
        count: count("count of instances", message.count)?,
        gpus: each(message.gpus, |gpu| count("gpus", gpu))?,
        name: message.name,
    })
}

fn optimization(message: Option<proto::ModelOptimizationPolicy>) -> Optimization {
    use crate::proto::model_optimization_policy::execution_accelerators;
    let read = |accelerators: Vec<execution_accelerators::Accelerator>| {
        let read = |accelerator: execution_accelerators::Accelerator| Accelerator {
            name: accelerator.name,
            parameters: accelerator.parameters.into_iter().collect(),
        };
        accelerators.into_iter().map(read).collect()
    };
    let accelerators = message.and_then(|message| message.execution_accelerators);
    let accelerators = accelerators.unwrap_or_default();
    Optimization {
        execution_accelerators: ExecutionAccelerators {
            gpu_execution_accelerator: read(accelerators.gpu_execution_accelerator),
            cpu_execution_accelerator: read(accelerators.cpu_execution_accelerator),
        },
    }
}

fn dynamic_batching_of(message: proto::ModelDynamicBatching) -> Result<DynamicBatching, ServiceError> {
    let preferred = |size| count("preferred_batch_size", size);
    let by_priority = message.priority_queue_policy.into_iter();
    let by_priority: BTreeMap<u64, QueuePolicy> = by_priority
        .map(|(priority, policy)| (priority, queue_policy(&policy)))
        .collect();
    Ok(DynamicBatching {
        preferred_batch_size: each(message.preferred_batch_size, preferred)?,
        max_queue_delay_microseconds: message.max_queue_delay_microseconds,
        preserve_ordering: message.preserve_ordering,
        priority_levels: message.priority_levels,
        default_priority_level: message.default_priority_level,
        default_queue_policy: message.default_queue_policy.as_ref().map(queue_policy),
        priority_queue_policy: by_priority,
    })
}

fn queue_policy(message: &proto::ModelQueuePolicy) -> QueuePolicy {
    QueuePolicy {
        timeout_action: match message.timeout_action() {
            model_queue_policy::TimeoutAction::Reject => TimeoutAction::Reject,
            model_queue_policy::TimeoutAction::Delay => TimeoutAction::Delay,
        },
        default_timeout_microseconds: message.default_timeout_microseconds,
        allow_timeout_override: message.allow_timeout_override,
        max_queue_size: message.max_queue_size,
    }
}

fn step(message: proto::model_ensembling::Step) -> EnsembleStep {
    EnsembleStep {
        model_name: message.model_name,
        model_version: message.model_version,
        input_map: message.input_map,
        output_map: message.output_map,
    }
}

fn warmup(message: proto::ModelWarmup) -> Result<Warmup, ServiceError> {
    let input = |(name, input): (String, proto::model_warmup::Input)| {
        let data = match input.input_data_type {
            Some(InputDataType::RandomData(random)) => WarmupData::RandomData(random),
            Some(InputDataType::InputDataFile(file)) => WarmupData::InputDataFile(file),
            Some(InputDataType::ZeroData(zeros)) => WarmupData::ZeroData(zeros),
            None => WarmupData::ZeroData(true),
        };
        let data_type = datatype(&name, input.data_type)?;
        let dims = input.dims;
        Ok((
            name,
            WarmupInput {
                data_type,
                dims,
                data,
            },
        ))
    };
    Ok(Warmup {
        name: message.name,
        batch_size: message.batch_size,
        inputs: message
            .inputs
            .into_iter()
            .map(input)
            .collect::<Result<_, ServiceError>>()?,
        count: message.count,
    })
}
