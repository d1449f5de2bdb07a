//! Converts between the types of the protocol's extensions and gRPC messages.

use std::collections::BTreeMap;

use bytes::Bytes;
use oip_types::{
    BatchStatistics, CudaMemoryRegion, InferStatistics, LoadOptions, LogSetting, LogSettings, MemoryUsage,
    ModelIndexEntry, ModelState, ModelStatistics, SharedMemoryRegion, StatisticDuration, TraceSettings,
    UnloadOptions,
};

use crate::proto::{
    self, CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusResponse, LogSettingsRequest,
    LogSettingsResponse, ModelRepositoryParameter, ModelStatisticsResponse, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelUnloadRequest, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryStatusResponse, TraceSettingRequest, TraceSettingResponse, log_settings_request,
    log_settings_response, model_repository_parameter::ParameterChoice, trace_setting_request,
};

/// Decodes the repository index.
#[must_use]
pub fn decode_index(message: RepositoryIndexResponse) -> Vec<ModelIndexEntry> {
    let filled = |text: String| Some(text).filter(|text| !text.is_empty());
    let entry = |model: proto::repository_index_response::ModelIndex| ModelIndexEntry {
        name: model.name,
        version: filled(model.version),
        // MLServer sends the state's name rather than the enum value.
        state: filled(model.state)
            .map(|state| ModelState::from_name(state.strip_prefix("State.").unwrap_or(&state))),
        reason: model.reason,
    };
    message.models.into_iter().map(entry).collect()
}

fn parameters<const N: usize>(
    parameters: [(&str, Option<ParameterChoice>); N],
) -> BTreeMap<String, ModelRepositoryParameter> {
    let given = parameters.into_iter().filter(|(_, choice)| choice.is_some());
    given
        .map(|(name, parameter_choice)| (name.to_owned(), ModelRepositoryParameter { parameter_choice }))
        .collect()
}

/// Encodes a request to load a model.
#[must_use]
pub fn encode_load(model: &str, options: &LoadOptions) -> RepositoryModelLoadRequest {
    let config = options.config.clone().map(ParameterChoice::StringParam);
    let mut parameters = parameters([("config", config)]);
    parameters.extend(options.files.iter().map(|(path, content)| {
        let parameter_choice = Some(ParameterChoice::BytesParam(content.clone()));
        (
            format!("file:{path}"),
            ModelRepositoryParameter { parameter_choice },
        )
    }));
    RepositoryModelLoadRequest {
        repository_name: String::new(),
        model_name: model.to_owned(),
        parameters,
    }
}

/// Encodes a request to read or change trace settings.
#[must_use]
pub fn encode_trace_settings(model: Option<&str>, changes: &TraceSettings) -> TraceSettingRequest {
    let settings = changes.iter().map(|(name, value)| {
        let value = trace_setting_request::SettingValue { value: value.clone() };
        (name.clone(), value)
    });
    TraceSettingRequest {
        settings: settings.collect(),
        model_name: model.unwrap_or_default().to_owned(),
    }
}

/// Decodes trace settings by name.
#[must_use]
pub fn decode_trace_settings(message: TraceSettingResponse) -> TraceSettings {
    let settings = message.settings.into_iter();
    settings.map(|(name, setting)| (name, setting.value)).collect()
}

/// Encodes a request to register a region of GPU memory by its CUDA IPC handle.
#[must_use]
pub fn encode_cuda_region(region: &CudaMemoryRegion, handle: &Bytes) -> CudaSharedMemoryRegisterRequest {
    CudaSharedMemoryRegisterRequest {
        name: region.name.clone(),
        raw_handle: handle.clone(),
        device_id: i64::try_from(region.device_id).unwrap_or(i64::MAX),
        byte_size: region.byte_size,
    }
}

/// Decodes the registered regions of GPU memory, by name.
#[must_use]
pub fn decode_cuda_regions(message: CudaSharedMemoryStatusResponse) -> Vec<CudaMemoryRegion> {
    let regions = message.regions.into_values();
    let region = |region: proto::cuda_shared_memory_status_response::RegionStatus| CudaMemoryRegion {
        name: region.name,
        device_id: region.device_id,
        byte_size: region.byte_size,
    };
    regions.map(region).collect()
}

/// Encodes a request to unload a model.
#[must_use]
pub fn encode_unload(model: &str, options: UnloadOptions) -> RepositoryModelUnloadRequest {
    let dependents = options
        .unload_dependents
        .then_some(ParameterChoice::BoolParam(true));
    RepositoryModelUnloadRequest {
        repository_name: String::new(),
        model_name: model.to_owned(),
        parameters: parameters([("unload_dependents", dependents)]),
    }
}

/// Decodes statistics. Missing values are 0.
#[must_use]
pub fn decode_statistics(message: ModelStatisticsResponse) -> Vec<ModelStatistics> {
    let duration = |duration: Option<proto::StatisticDuration>| {
        duration.map_or_else(StatisticDuration::default, |duration| StatisticDuration {
            count: duration.count,
            ns: duration.ns,
        })
    };
    let batch = |batch: proto::InferBatchStatistics| BatchStatistics {
        batch_size: batch.batch_size,
        compute_input: duration(batch.compute_input),
        compute_infer: duration(batch.compute_infer),
        compute_output: duration(batch.compute_output),
    };
    let memory = |memory: proto::MemoryUsage| MemoryUsage {
        kind: memory.r#type,
        id: memory.id,
        byte_size: memory.byte_size,
    };
    let model = |model: proto::ModelStatistics| {
        let infer = model.inference_stats.unwrap_or_default();
        ModelStatistics {
            name: model.name,
            version: model.version,
            last_inference: model.last_inference,
            inference_count: model.inference_count,
            execution_count: model.execution_count,
            inference_stats: InferStatistics {
                success: duration(infer.success),
                fail: duration(infer.fail),
                queue: duration(infer.queue),
                compute_input: duration(infer.compute_input),
                compute_infer: duration(infer.compute_infer),
                compute_output: duration(infer.compute_output),
                cache_hit: duration(infer.cache_hit),
                cache_miss: duration(infer.cache_miss),
            },
            batch_stats: model.batch_stats.into_iter().map(batch).collect(),
            memory_usage: model.memory_usage.into_iter().map(memory).collect(),
            ..ModelStatistics::default()
        }
    };
    message.model_stats.into_iter().map(model).collect()
}

/// Encodes changes of log settings.
#[must_use]
pub fn encode_log_settings(changes: &LogSettings) -> LogSettingsRequest {
    use log_settings_request::{SettingValue, setting_value::ParameterChoice};
    let setting = |(name, value): (&String, &LogSetting)| {
        let choice = match value {
            LogSetting::Bool(value) => ParameterChoice::BoolParam(*value),
            LogSetting::Uint32(value) => ParameterChoice::Uint32Param(*value),
            LogSetting::String(value) => ParameterChoice::StringParam(value.clone()),
        };
        let parameter_choice = Some(choice);
        (name.clone(), SettingValue { parameter_choice })
    };
    LogSettingsRequest {
        settings: changes.iter().map(setting).collect(),
    }
}

/// Decodes log settings. Settings without a value are omitted.
#[must_use]
pub fn decode_log_settings(message: LogSettingsResponse) -> LogSettings {
    use log_settings_response::{SettingValue, setting_value::ParameterChoice};
    let setting = |(name, value): (String, SettingValue)| {
        let value = match value.parameter_choice? {
            ParameterChoice::BoolParam(value) => LogSetting::Bool(value),
            ParameterChoice::Uint32Param(value) => LogSetting::Uint32(value),
            ParameterChoice::StringParam(value) => LogSetting::String(value),
        };
        Some((name, value))
    };
    message.settings.into_iter().filter_map(setting).collect()
}

/// Encodes a request to register shared memory.
#[must_use]
pub fn encode_region(region: &SharedMemoryRegion) -> SystemSharedMemoryRegisterRequest {
    SystemSharedMemoryRegisterRequest {
        name: region.name.clone(),
        key: region.key.clone(),
        offset: region.offset,
        byte_size: region.byte_size,
    }
}

/// Decodes the registered regions, by name.
#[must_use]
pub fn decode_regions(message: SystemSharedMemoryStatusResponse) -> Vec<SharedMemoryRegion> {
    let regions = message.regions.into_values();
    let region = |region: proto::system_shared_memory_status_response::RegionStatus| SharedMemoryRegion {
        name: region.name,
        key: region.key,
        offset: region.offset,
        byte_size: region.byte_size,
    };
    regions.map(region).collect()
}
