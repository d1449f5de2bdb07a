//! The extensions of the in-memory service.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use oip_types::{
    BatchStatistics, ErrorCode, InferStatistics, Joining, LoadOptions, LogSetting, LogSettings, MemoryUsage,
    ModelConfig, ModelIndexEntry, ModelRef, ModelState, ModelStatistics, ReadSharedMemory, ServiceError,
    SharedMemoryRegion, SharedMemorySlice, StatisticDuration, UnloadOptions,
    model_config::{DynamicBatching, InputConfig, InputFormat, OutputConfig},
};
use parking_lot::{Mutex, MutexGuard};
use tensor_core::QuotedName;

use super::models::{find, metadata};
use oip_model::BoxFuture;

use crate::{
    Classes, Classification, Logging, ModelConfiguration, ModelRepository, Statistics, SystemSharedMemory,
};

/// State of the extensions.
#[derive(Debug, Default)]
pub(super) struct Extensions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The models that clients have loaded or unloaded, with their options.
    loads: BTreeMap<String, Result<LoadOptions, UnloadOptions>>,
    log_settings: LogSettings,
    regions: BTreeMap<String, SharedMemoryRegion>,
    memory: BTreeMap<String, Vec<u8>>,
}

impl Extensions {
    pub(super) fn share(&self, key: &str, memory: Vec<u8>) {
        self.lock().memory.insert(key.to_owned(), memory);
    }

    pub(super) fn shared(&self, key: &str) -> Option<Vec<u8>> {
        self.lock().memory.get(key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

fn known(model: ModelRef<'_>) -> Result<(), ServiceError> {
    let not_found = || ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist"));
    find(model).map(drop).ok_or_else(not_found)
}

/// Always lists `loading` (being loaded), `matrix` (two versions, one ready) and `never` (never loaded), and
/// the models that clients have loaded (with the configuration as the reason) or unloaded. Loading or
/// unloading `locked` is refused.
impl ModelRepository for Extensions {
    fn index(&self) -> Vec<ModelIndexEntry> {
        let entry = |name: &str, version: Option<&str>, state, reason: &str| ModelIndexEntry {
            name: name.to_owned(),
            version: version.map(str::to_owned),
            state,
            reason: reason.to_owned(),
        };
        let mut index = vec![
            entry("loading", None, Some(ModelState::Loading), ""),
            entry("matrix", Some("1"), Some(ModelState::Unavailable), "unloaded"),
            entry("matrix", Some("2"), Some(ModelState::Ready), ""),
            entry("never", None, None, ""),
        ];
        index.extend(self.lock().loads.iter().map(|(name, load)| match load {
            Ok(LoadOptions { config, .. }) => entry(
                name,
                None,
                Some(ModelState::Ready),
                config.as_deref().unwrap_or_default(),
            ),
            Err(UnloadOptions {
                unload_dependents, ..
            }) => {
                let reason = if *unload_dependents {
                    "unloaded with dependents"
                } else {
                    "unloaded"
                };
                entry(name, None, Some(ModelState::Unavailable), reason)
            }
        }));
        index
    }

    fn load(&self, model: ModelRef<'_>, options: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        let done = self.change(model, Ok(options));
        Box::pin(async { done })
    }

    fn unload(&self, model: ModelRef<'_>, options: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        let done = self.change(model, Err(options));
        Box::pin(async { done })
    }
}

impl Extensions {
    fn change(
        &self,
        model: ModelRef<'_>,
        change: Result<LoadOptions, UnloadOptions>,
    ) -> Result<(), ServiceError> {
        if model.name() == "locked" {
            let message = "loading and unloading by request is not allowed";
            return Err(ServiceError::new(ErrorCode::Unavailable, message));
        }
        known(model)?;
        self.lock().loads.insert(model.name().to_owned(), change);
        Ok(())
    }
}

/// Configurations match the metadata, with `max_batch_size` 4 and dynamic batching for `matrix`. `matrix` and
/// `identity_fp32` have an example.
impl ModelConfiguration for Extensions {
    fn model_example(&self, model: ModelRef<'_>) -> Result<Option<Bytes>, ServiceError> {
        known(model)?;
        let example = match model.name() {
            "identity_fp32" => {
                r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}"#
            }
            "matrix" => {
                r#"{"inputs": [{"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
                    {"name": "b", "datatype": "INT64", "shape": [1], "data": [3]}]}"#
            }
            _ => return Ok(None),
        };
        Ok(Some(Bytes::from_static(example.as_bytes())))
    }

    fn model_config(&self, model: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError> {
        known(model)?;
        let metadata = metadata(model.name()).into_iter();
        let mut config = ModelConfig::default();
        for metadata in metadata {
            let is_batched = metadata.name == "matrix";
            let dims =
                |shape: &oip_types::ShapePattern| shape.to_wire().skip(usize::from(is_batched)).collect();
            config = ModelConfig {
                name: metadata.name.clone(),
                platform: metadata.platform,
                backend: "test".to_owned(),
                max_batch_size: if is_batched { 4 } else { 0 },
                dynamic_batching: is_batched.then(DynamicBatching::default),
                input: metadata
                    .inputs
                    .iter()
                    .map(|input| InputConfig {
                        name: input.name.clone(),
                        data_type: input.datatype,
                        format: InputFormat::None,
                        dims: dims(&input.shape),
                        reshape: None,
                        is_shape_tensor: false,
                        allow_ragged_batch: false,
                        optional: false,
                    })
                    .collect(),
                output: metadata
                    .outputs
                    .iter()
                    .map(|output| OutputConfig {
                        name: output.name.clone(),
                        data_type: output.datatype,
                        dims: dims(&output.shape),
                        reshape: None,
                        label_filename: String::new(),
                        is_shape_tensor: false,
                    })
                    .collect(),
                ..ModelConfig::default()
            };
            if is_batched {
                Joining::Declared.show_in(&mut config);
            }
        }
        Ok(Arc::new(config))
    }
}

/// All numbers in the statistics differ, so that a test detects a value in the wrong field. Without a model,
/// the statistics of both versions of `matrix` are returned.
impl Statistics for Extensions {
    fn model_statistics(&self, model: Option<ModelRef<'_>>) -> Result<Vec<ModelStatistics>, ServiceError> {
        model.map_or(Ok(()), known)?;
        let name = model.map_or("matrix", |model| model.name());
        let versions: &[&str] = match model.and_then(|model| model.version()) {
            Some("1") => &["1"],
            Some(_) => &["2"],
            None => &["1", "2"],
        };
        let duration = |number| StatisticDuration {
            count: number,
            ns: 1_000_000_000 * number,
        };
        let statistics = |version: &&str| ModelStatistics {
            name: name.to_owned(),
            version: (*version).to_owned(),
            last_inference: 1_700_000_000_000,
            inference_count: 101,
            execution_count: 102,
            inference_stats: InferStatistics {
                success: duration(1),
                fail: duration(2),
                queue: duration(3),
                compute_input: duration(4),
                compute_infer: duration(5),
                compute_output: duration(6),
                cache_hit: duration(7),
                cache_miss: duration(8),
            },
            batch_stats: vec![BatchStatistics {
                batch_size: 9,
                compute_input: duration(10),
                compute_infer: duration(11),
                compute_output: duration(12),
            }],
            memory_usage: vec![MemoryUsage {
                kind: "CPU".to_owned(),
                id: 13,
                byte_size: 14,
            }],
            ..ModelStatistics::default()
        };
        Ok(versions.iter().map(statistics).collect())
    }
}

/// Treats outputs of `matrix` as batched, and names class 1 of any output `dog`.
impl Classification for Extensions {
    fn classes(&self, model: ModelRef<'_>, _: &str) -> Classes {
        Classes::new(model.name() == "matrix", ["", "dog"].map(str::to_owned).into())
    }
}

/// The settings are `log_error`, `log_warning` and `log_info` (booleans), `log_verbose_level` (a number) and
/// `log_format` (a string).
impl Logging for Extensions {
    fn log_settings(&self) -> LogSettings {
        let mut settings = LogSettings::from([
            ("log_error".to_owned(), LogSetting::Bool(true)),
            ("log_warning".to_owned(), LogSetting::Bool(true)),
            ("log_info".to_owned(), LogSetting::Bool(true)),
            ("log_verbose_level".to_owned(), LogSetting::Uint32(0)),
            ("log_format".to_owned(), LogSetting::String("default".to_owned())),
        ]);
        settings.extend(self.lock().log_settings.clone());
        settings
    }

    fn change_log_settings(&self, changes: LogSettings) -> Result<LogSettings, ServiceError> {
        let known = self.log_settings();
        for (name, value) in &changes {
            let fits = known
                .get(name)
                .is_some_and(|known| std::mem::discriminant(known) == std::mem::discriminant(value));
            if !fits {
                return Err(ServiceError::invalid(format!(
                    "log setting {}: unexpected value {value}",
                    QuotedName(name)
                )));
            }
        }
        self.lock().log_settings.extend(changes);
        Ok(self.log_settings())
    }
}

impl ReadSharedMemory for Extensions {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        self.within(slice, |memory| Bytes::copy_from_slice(memory))
    }
}

/// Regions refer to the memory of [`TestService::share`](super::TestService::share).
impl SystemSharedMemory for Extensions {
    fn register(&self, region: SharedMemoryRegion) -> Result<(), ServiceError> {
        let mut state = self.lock();
        let len = state.memory.get(&region.key).map(Vec::len);
        let end = region.offset.checked_add(region.byte_size);
        if len.zip(end).is_none_or(|(len, end)| end > len as u64) {
            return Err(ServiceError::invalid(format!(
                "shared memory region {}: there is no such memory",
                QuotedName(&region.name)
            )));
        }
        if state.regions.contains_key(&region.name) {
            return Err(ServiceError::invalid(format!(
                "shared memory region {} is registered already",
                QuotedName(&region.name)
            )));
        }
        state.regions.insert(region.name.clone(), region);
        Ok(())
    }

    fn unregister(&self, name: Option<&str>) {
        self.lock()
            .regions
            .retain(|known, _| name.is_some_and(|name| name != known));
    }

    fn status(&self, name: Option<&str>) -> Result<Vec<SharedMemoryRegion>, ServiceError> {
        let state = self.lock();
        let regions: Vec<_> = state
            .regions
            .values()
            .filter(|known| name.is_none_or(|name| name == known.name))
            .cloned()
            .collect();
        match name {
            Some(name) if regions.is_empty() => Err(ServiceError::new(
                ErrorCode::NotFound,
                format!("shared memory region {} does not exist", QuotedName(name)),
            )),
            _ => Ok(regions),
        }
    }

    fn write(&self, slice: &SharedMemorySlice, bytes: &[u8]) -> Result<(), ServiceError> {
        self.within(slice, |memory| memory[..bytes.len()].copy_from_slice(bytes))
    }
}

impl Extensions {
    fn within<T>(
        &self,
        slice: &SharedMemorySlice,
        use_memory: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, ServiceError> {
        let mut state = self.lock();
        let refused = |what: &str| {
            ServiceError::invalid(format!(
                "shared memory region {}: {what}",
                QuotedName(&slice.region)
            ))
        };
        let region = state
            .regions
            .get(&slice.region)
            .cloned()
            .ok_or_else(|| refused("it does not exist"))?;
        let end = slice
            .offset
            .checked_add(slice.byte_size)
            .filter(|end| *end <= region.byte_size);
        let end = end.ok_or_else(|| refused("the slice is not within it"))?;
        let memory = state
            .memory
            .get_mut(&region.key)
            .ok_or_else(|| refused("its memory is gone"))?;
        let range = (region.offset + slice.offset) as usize..(region.offset + end) as usize;
        Ok(use_memory(&mut memory[range]))
    }
}

#[cfg(test)]
mod tests {
    use oip_types::DataType;

    use super::*;

    #[test]
    fn configurations_leave_the_batch_dimension_out() {
        let extensions = Extensions::default();
        let config = extensions
            .model_config(ModelRef::new("matrix", None).unwrap())
            .unwrap();
        assert_eq!((config.max_batch_size, &config.input[0].dims[..]), (4, &[2][..]));
        assert_eq!(config.output[0].data_type, DataType::FP32);
    }
}
