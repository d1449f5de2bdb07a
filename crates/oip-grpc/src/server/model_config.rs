//! Encodes model configurations for the model configuration extension.

use oip_service::{InferenceService, extensions};
use oip_types::{
    DataType, ModelConfig, ServiceError,
    model_config::{
        Accelerator, DynamicBatching, EnsembleScheduling, EnsembleStep, InputConfig, InputFormat,
        InstanceGroup, InstanceKind, Optimization, OutputConfig, QueuePolicy, Reshape, TimeoutAction,
        VersionPolicy, Warmup, WarmupData,
    },
};

use super::convert;
use crate::proto::{self, model_config::SchedulingChoice, model_version_policy::PolicyChoice};

pub(crate) fn config(
    service: &dyn InferenceService,
    request: &proto::ModelConfigRequest,
) -> Result<proto::ModelConfigResponse, ServiceError> {
    let configuration = extensions::configuration(service)?;
    let model = convert::model(&request.name, &request.version)?;
    let config = configuration.model_config(model)?;
    Ok(proto::ModelConfigResponse {
        config: Some(write(&config)),
    })
}

fn write(config: &ModelConfig) -> proto::ModelConfig {
    let batching = config.dynamic_batching.as_ref();
    let ensemble = config.ensemble_scheduling.as_ref();
    // A message has either an ensemble or batching; a pipeline does not batch requests itself.
    let scheduling = match (ensemble, batching) {
        (Some(ensemble), _) => Some(SchedulingChoice::EnsembleScheduling(write_ensemble(ensemble))),
        (None, Some(batching)) => Some(SchedulingChoice::DynamicBatching(write_batching(batching))),
        (None, None) => None,
    };
    proto::ModelConfig {
        name: config.name.clone(),
        platform: config.platform.clone(),
        version_policy: Some(write_version_policy(&config.version_policy)),
        max_batch_size: signed(config.max_batch_size),
        input: config.input.iter().map(write_input).collect(),
        output: config.output.iter().map(write_output).collect(),
        instance_group: config.instance_group.iter().map(write_instances).collect(),
        default_model_filename: config.default_model_filename.clone(),
        parameters: config
            .parameters
            .iter()
            .map(|(name, parameter)| {
                let string_value = parameter.string_value.clone();
                (name.clone(), proto::ModelParameter { string_value })
            })
            .collect(),
        model_warmup: config.model_warmup.iter().map(write_warmup).collect(),
        backend: config.backend.clone(),
        model_transaction_policy: Some(proto::ModelTransactionPolicy {
            decoupled: config.model_transaction_policy.decoupled,
        }),
        response_cache: Some(proto::ModelResponseCache {
            enable: config.response_cache.enable,
        }),
        runtime: config.runtime.clone(),
        optimization: (!config.optimization.is_empty()).then(|| write_optimization(&config.optimization)),
        scheduling_choice: scheduling,
    }
}

/// Converts a number to the message's type; models' values always fit.
fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn write_datatype(datatype: DataType) -> i32 {
    proto::DataType::from_str_name(&datatype.config_name())
        .unwrap_or(proto::DataType::TypeInvalid)
        .into()
}

fn write_version_policy(policy: &VersionPolicy) -> proto::ModelVersionPolicy {
    use crate::proto::model_version_policy::{All, Latest, Specific};
    let choice = match policy {
        VersionPolicy::Latest { num_versions } => PolicyChoice::Latest(Latest {
            num_versions: *num_versions,
        }),
        VersionPolicy::All {} => PolicyChoice::All(All {}),
        VersionPolicy::Specific { versions } => PolicyChoice::Specific(Specific {
            versions: versions.clone(),
        }),
    };
    proto::ModelVersionPolicy {
        policy_choice: Some(choice),
    }
}

fn write_reshape(reshape: &Reshape) -> proto::ModelTensorReshape {
    proto::ModelTensorReshape {
        shape: reshape.shape.clone(),
    }
}

fn write_input(input: &InputConfig) -> proto::ModelInput {
    use crate::proto::model_input::Format;
    let format = match input.format {
        InputFormat::None => Format::None,
        InputFormat::Nhwc => Format::Nhwc,
        InputFormat::Nchw => Format::Nchw,
    };
    proto::ModelInput {
        name: input.name.clone(),
        data_type: write_datatype(input.data_type),
        format: format.into(),
        dims: input.dims.clone(),
        reshape: input.reshape.as_ref().map(write_reshape),
        is_shape_tensor: input.is_shape_tensor,
        allow_ragged_batch: input.allow_ragged_batch,
        optional: input.optional,
    }
}

fn write_output(output: &OutputConfig) -> proto::ModelOutput {
    proto::ModelOutput {
        name: output.name.clone(),
        data_type: write_datatype(output.data_type),
        dims: output.dims.clone(),
        label_filename: output.label_filename.clone(),
        reshape: output.reshape.as_ref().map(write_reshape),
        is_shape_tensor: output.is_shape_tensor,
    }
}

fn write_instances(group: &InstanceGroup) -> proto::ModelInstanceGroup {
    use crate::proto::model_instance_group::Kind;
    let kind = match group.kind {
        InstanceKind::Auto => Kind::Auto,
        InstanceKind::Gpu => Kind::Gpu,
        InstanceKind::Cpu => Kind::Cpu,
        InstanceKind::Model => Kind::Model,
    };
    proto::ModelInstanceGroup {
        name: group.name.clone(),
        count: signed(group.count),
        gpus: group.gpus.iter().copied().map(signed).collect(),
        kind: kind.into(),
    }
}

fn write_optimization(optimization: &Optimization) -> proto::ModelOptimizationPolicy {
    use crate::proto::model_optimization_policy::{ExecutionAccelerators, execution_accelerators};
    let write = |accelerator: &Accelerator| execution_accelerators::Accelerator {
        name: accelerator.name.clone(),
        parameters: accelerator.parameters.clone().into_iter().collect(),
    };
    let accelerators = &optimization.execution_accelerators;
    proto::ModelOptimizationPolicy {
        execution_accelerators: Some(ExecutionAccelerators {
            gpu_execution_accelerator: accelerators.gpu_execution_accelerator.iter().map(write).collect(),
            cpu_execution_accelerator: accelerators.cpu_execution_accelerator.iter().map(write).collect(),
        }),
    }
}

fn write_batching(batching: &DynamicBatching) -> proto::ModelDynamicBatching {
    proto::ModelDynamicBatching {
        preferred_batch_size: batching
            .preferred_batch_size
            .iter()
            .copied()
            .map(signed)
            .collect(),
        max_queue_delay_microseconds: batching.max_queue_delay_microseconds,
        preserve_ordering: batching.preserve_ordering,
        priority_levels: batching.priority_levels,
        default_priority_level: batching.default_priority_level,
        default_queue_policy: batching.default_queue_policy.as_ref().map(write_queue_policy),
        priority_queue_policy: batching
            .priority_queue_policy
            .iter()
            .map(|(priority, policy)| (*priority, write_queue_policy(policy)))
            .collect(),
    }
}

fn write_queue_policy(policy: &QueuePolicy) -> proto::ModelQueuePolicy {
    use crate::proto::model_queue_policy::TimeoutAction as Action;
    let action = match policy.timeout_action {
        TimeoutAction::Reject => Action::Reject,
        TimeoutAction::Delay => Action::Delay,
    };
    proto::ModelQueuePolicy {
        timeout_action: action.into(),
        default_timeout_microseconds: policy.default_timeout_microseconds,
        allow_timeout_override: policy.allow_timeout_override,
        max_queue_size: policy.max_queue_size,
    }
}

fn write_ensemble(ensemble: &EnsembleScheduling) -> proto::ModelEnsembling {
    let step = |step: &EnsembleStep| proto::model_ensembling::Step {
        model_name: step.model_name.clone(),
        model_version: step.model_version,
        input_map: step.input_map.clone(),
        output_map: step.output_map.clone(),
    };
    proto::ModelEnsembling {
        step: ensemble.step.iter().map(step).collect(),
    }
}

fn write_warmup(warmup: &Warmup) -> proto::ModelWarmup {
    use crate::proto::model_warmup::{Input, input::InputDataType};
    let input = |input: &oip_types::model_config::WarmupInput| Input {
        data_type: write_datatype(input.data_type),
        dims: input.dims.clone(),
        input_data_type: Some(match &input.data {
            WarmupData::ZeroData(zero) => InputDataType::ZeroData(*zero),
            WarmupData::RandomData(random) => InputDataType::RandomData(*random),
            WarmupData::InputDataFile(file) => InputDataType::InputDataFile(file.clone()),
        }),
    };
    proto::ModelWarmup {
        name: warmup.name.clone(),
        batch_size: warmup.batch_size,
        inputs: warmup
            .inputs
            .iter()
            .map(|(name, data)| (name.clone(), input(data)))
            .collect(),
        count: warmup.count,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use oip_types::model_config::{
        ConfigParameter, ExecutionAccelerators, ResponseCache, TransactionPolicy, WarmupInput,
    };

    use super::*;

    /// Returns a configuration in which every field differs from its default.
    fn full() -> ModelConfig {
        let name = |name: &str| name.to_owned();
        ModelConfig {
            name: name("m"),
            platform: name("p"),
            backend: name("b"),
            runtime: name("r"),
            version_policy: VersionPolicy::Specific { versions: vec![3, 5] },
            max_batch_size: 8,
            input: vec![InputConfig {
                name: name("x"),
                data_type: DataType::BYTES,
                format: InputFormat::Nchw,
                dims: vec![-1, 2],
                reshape: Some(Reshape { shape: vec![2] }),
                is_shape_tensor: true,
                allow_ragged_batch: true,
                optional: true,
            }],
            output: vec![OutputConfig {
                name: name("y"),
                data_type: DataType::BOOL,
                dims: vec![4],
                reshape: Some(Reshape { shape: vec![4, 1] }),
                label_filename: name("labels.txt"),
                is_shape_tensor: true,
            }],
            instance_group: vec![InstanceGroup {
                name: name("g"),
                kind: InstanceKind::Gpu,
                count: 2,
                gpus: vec![0, 1],
            }],
            optimization: Optimization {
                execution_accelerators: ExecutionAccelerators {
                    gpu_execution_accelerator: vec![Accelerator {
                        name: name("cuda"),
                        parameters: BTreeMap::from([(name("gpu_mem_limit"), name("1"))]),
                    }],
                    cpu_execution_accelerator: vec![Accelerator {
                        name: name("openvino"),
                        parameters: BTreeMap::new(),
                    }],
                },
            },
            default_model_filename: name("f.onnx"),
            dynamic_batching: Some(DynamicBatching {
                preferred_batch_size: vec![4, 8],
                max_queue_delay_microseconds: 100,
                preserve_ordering: true,
                priority_levels: 2,
                default_priority_level: 1,
                default_queue_policy: Some(QueuePolicy {
                    timeout_action: TimeoutAction::Delay,
                    default_timeout_microseconds: 7,
                    allow_timeout_override: true,
                    max_queue_size: 9,
                }),
                priority_queue_policy: BTreeMap::from([(2, QueuePolicy::default())]),
            }),
            ensemble_scheduling: None,
            parameters: BTreeMap::from([(
                name("k"),
                ConfigParameter {
                    string_value: name("v"),
                },
            )]),
            model_warmup: vec![Warmup {
                name: name("w"),
                batch_size: 1,
                inputs: BTreeMap::from([(
                    name("x"),
                    WarmupInput {
                        data_type: DataType::FP32,
                        dims: vec![2],
                        data: WarmupData::InputDataFile(name("x.raw")),
                    },
                )]),
                count: 3,
            }],
            model_transaction_policy: TransactionPolicy { decoupled: true },
            response_cache: ResponseCache { enable: true },
        }
    }

    #[test]
    fn every_field_has_its_place() {
        let shown = format!("{:?}", write(&full()));
        let expected = concat!(
            "ModelConfig { name: \"m\", platform: \"p\", ",
            "version_policy: Some(ModelVersionPolicy { policy_choice: Some(Specific(Specific { versions: [3, 5] })) }), ",
            "max_batch_size: 8, ",
            "input: [ModelInput { name: \"x\", data_type: TypeString, format: Nchw, dims: [-1, 2], ",
            "reshape: Some(ModelTensorReshape { shape: [2] }), is_shape_tensor: true, allow_ragged_batch: true, ",
            "optional: true }], ",
            "output: [ModelOutput { name: \"y\", data_type: TypeBool, dims: [4], label_filename: \"labels.txt\", ",
            "reshape: Some(ModelTensorReshape { shape: [4, 1] }), is_shape_tensor: true }], ",
            "instance_group: [ModelInstanceGroup { name: \"g\", count: 2, gpus: [0, 1], kind: Gpu }], ",
            "default_model_filename: \"f.onnx\", ",
            "optimization: Some(ModelOptimizationPolicy { execution_accelerators: Some(ExecutionAccelerators { ",
            "gpu_execution_accelerator: [Accelerator { name: \"cuda\", parameters: {\"gpu_mem_limit\": \"1\"} }], ",
            "cpu_execution_accelerator: [Accelerator { name: \"openvino\", parameters: {} }] }) }), ",
            "parameters: {\"k\": ModelParameter { string_value: \"v\" }}, ",
            "model_warmup: [ModelWarmup { name: \"w\", batch_size: 1, ",
            "inputs: {\"x\": Input { data_type: TypeFp32, dims: [2], ",
            "input_data_type: Some(InputDataFile(\"x.raw\")) }}, count: 3 }], ",
            "backend: \"b\", model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }), ",
            "response_cache: Some(ModelResponseCache { enable: true }), runtime: \"r\", ",
            "scheduling_choice: Some(DynamicBatching(ModelDynamicBatching { preferred_batch_size: [4, 8], ",
            "max_queue_delay_microseconds: 100, preserve_ordering: true, priority_levels: 2, ",
            "default_priority_level: 1, default_queue_policy: Some(ModelQueuePolicy { timeout_action: Delay, ",
            "default_timeout_microseconds: 7, allow_timeout_override: true, max_queue_size: 9 }), ",
            "priority_queue_policy: {2: ModelQueuePolicy { timeout_action: Reject, ",
            "default_timeout_microseconds: 0, allow_timeout_override: false, max_queue_size: 0 }} })) }",
        );
        assert_eq!(shown, expected);
    }

    #[test]
    fn pipelines_and_other_choices() {
        let step = EnsembleStep {
            model_name: "a".to_owned(),
            model_version: 2,
            input_map: BTreeMap::from([("x".to_owned(), "in".to_owned())]),
            output_map: BTreeMap::from([("y".to_owned(), "out".to_owned())]),
        };
        let config = ModelConfig {
            version_policy: VersionPolicy::All {},
            ensemble_scheduling: Some(EnsembleScheduling { step: vec![step] }),
            ..ModelConfig::default()
        };
        let shown = format!("{:?}", write(&config));
        for part in [
            "Some(All(All))",
            "Some(EnsembleScheduling(ModelEnsembling { step: [Step { model_name: \"a\", model_version: 2, \
             input_map: {\"x\": \"in\"}, output_map: {\"y\": \"out\"} }] }))",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }

    #[test]
    fn every_datatype_has_a_number() {
        let number = |name: &str| write_datatype(DataType::from_name(name).unwrap());
        let names = [
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
            "FP64", "BYTES", "BF16",
        ];
        let numbers: Vec<i32> = names.into_iter().map(number).collect();
        assert_eq!(numbers, (1..=14).collect::<Vec<_>>());
    }
}
