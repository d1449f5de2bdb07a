//! Options of an execution provider: translates Triton's names, and adds a server's defaults.

use std::collections::BTreeMap;

use oip_types::{ModelConfig, ServiceError, model_config::Accelerator as Written};
use tensor_core::QuotedName;

use super::{Accelerator, ConfiguredAccelerator};

/// Returns an accelerator's options: defaults for a server, which the options of the configuration override.
///
/// # Errors
/// Returns an error for options that no provider accepts, or that this server manages itself.
pub(super) fn chosen(
    accelerator: Accelerator,
    written: Option<&Written>,
    config: &ModelConfig,
) -> Result<ConfiguredAccelerator, ServiceError> {
    let mut options = BTreeMap::new();
    if accelerator == Accelerator::Cuda {
        for (key, value) in CUDA_DEFAULTS {
            options.insert((*key).to_owned(), (*value).to_owned());
        }
        // Triton also accepts these CUDA options as model parameters.
        for key in CUDA_PARAMETERS {
            if let Some(parameter) = config.parameters.get(*key) {
                set(&mut options, accelerator, key, &parameter.string_value)?;
            }
        }
    }
    for (key, value) in written.iter().flat_map(|written| &written.parameters) {
        set(&mut options, accelerator, key, value)?;
    }
    Ok(ConfiguredAccelerator { accelerator, options })
}

/// CUDA options for a server that differ from ONNX Runtime's defaults. By default, the convolution search
/// tries all algorithms for each new shape, and the memory arena grows in powers of two, so that little of it
/// can be released.
const CUDA_DEFAULTS: &[(&str, &str)] = &[
    ("arena_extend_strategy", "kSameAsRequested"),
    ("cudnn_conv_algo_search", "HEURISTIC"),
];

/// Model parameters that are CUDA options, by Triton's names.
const CUDA_PARAMETERS: &[&str] = &["arena_extend_strategy", "cudnn_conv_algo_search", "gpu_mem_limit"];

/// Options that require device memory to stay at the same address between runs.
const GRAPHS: &[&str] = &["enable_cuda_graph", "trt_cuda_graph_enable"];

fn set(
    options: &mut BTreeMap<String, String>,
    accelerator: Accelerator,
    key: &str,
    value: &str,
) -> Result<(), ServiceError> {
    let name = accelerator.name();
    if key.contains('\0') || value.contains('\0') {
        return Err(ServiceError::invalid(format!(
            "the accelerator '{name}': the option {} has a zero byte",
            QuotedName(key)
        )));
    }
    if key == "device_id" && accelerator != Accelerator::OpenVino {
        return Err(ServiceError::invalid(format!(
            "the accelerator '{name}': the option 'device_id' is instance_group.gpus here; write that"
        )));
    }
    if GRAPHS.contains(&key) && !matches!(value, "0" | "false") {
        return Err(ServiceError::invalid(format!(
            "the accelerator '{name}': CUDA graphs ('{key}') are not supported: they replay a run with the memory of the first one, \
             and requests bring their own"
        )));
    }
    let (key, value) = match accelerator {
        Accelerator::Cuda => (key, conv_search(key, value)),
        Accelerator::TensorRt => tensorrt(key, value)?,
        Accelerator::OpenVino => (key, value),
    };
    options.insert(key.to_owned(), value.to_owned());
    Ok(())
}

/// Translates Triton's numbers for the convolution search.
fn conv_search<'v>(key: &str, value: &'v str) -> &'v str {
    match (key, value) {
        ("cudnn_conv_algo_search", "0") => "EXHAUSTIVE",
        ("cudnn_conv_algo_search", "1") => "HEURISTIC",
        ("cudnn_conv_algo_search", "2") => "DEFAULT",
        ("arena_extend_strategy", "0") => "kNextPowerOfTwo",
        ("arena_extend_strategy", "1") => "kSameAsRequested",
        _ => value,
    }
}

/// Translates Triton's option names of the accelerator `tensorrt`; other names are already ONNX Runtime's.
fn tensorrt<'o>(key: &'o str, value: &'o str) -> Result<(&'o str, &'o str), ServiceError> {
    Ok(match (key, value) {
        ("precision_mode", "FP32") => ("trt_fp16_enable", "0"),
        ("precision_mode", "FP16") => ("trt_fp16_enable", "1"),
        ("precision_mode", "INT8") => ("trt_int8_enable", "1"),
        ("precision_mode", other) => {
            return Err(ServiceError::invalid(format!(
                "the accelerator 'tensorrt': 'precision_mode' is {}, expected 'FP32', 'FP16' or 'INT8'",
                QuotedName(other)
            )));
        }
        ("max_workspace_size_bytes", _) => ("trt_max_workspace_size", value),
        ("int8_calibration_table_name", _) => ("trt_int8_calibration_table_name", value),
        ("int8_use_native_calibration_table", _) => ("trt_int8_use_native_calibration_table", value),
        _ => (key, value),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use oip_types::model_config::ConfigParameter;

    use super::*;

    fn written(options: &[(&str, &str)]) -> Written {
        let options = options
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Written {
            name: String::new(),
            parameters: options.collect(),
        }
    }

    fn with(accelerator: Accelerator, options: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        let chosen = chosen(accelerator, Some(&written(options)), &ModelConfig::default());
        match chosen {
            Ok(chosen) => Ok(chosen.options.into_iter().collect()),
            Err(error) => Err(error.message().to_owned()),
        }
    }

    fn pairs(options: &[(&str, &str)]) -> Vec<(String, String)> {
        written(options).parameters.into_iter().collect()
    }

    #[test]
    fn what_is_written_wins_over_the_parameters_and_these_over_the_defaults() {
        let parameter = |value: &str| ConfigParameter {
            string_value: value.to_owned(),
        };
        let config = ModelConfig {
            parameters: BTreeMap::from([
                ("cudnn_conv_algo_search".to_owned(), parameter("2")),
                ("gpu_mem_limit".to_owned(), parameter("1")),
                ("unrelated".to_owned(), parameter("1")),
            ]),
            ..ModelConfig::default()
        };
        let written = written(&[("gpu_mem_limit", "2"), ("use_tf32", "0")]);
        let chosen = chosen(Accelerator::Cuda, Some(&written), &config).unwrap();
        assert_eq!(
            chosen.options.into_iter().collect::<Vec<_>>(),
            pairs(&[
                ("arena_extend_strategy", "kSameAsRequested"),
                ("cudnn_conv_algo_search", "DEFAULT"),
                ("gpu_mem_limit", "2"),
                ("use_tf32", "0"),
            ])
        );
    }

    #[test]
    fn tensorrt_has_tritons_names_and_its_own() {
        let found = with(
            Accelerator::TensorRt,
            &[
                ("precision_mode", "FP16"),
                ("max_workspace_size_bytes", "1073741824"),
                ("trt_engine_cache_enable", "1"),
            ],
        );
        let expected = pairs(&[
            ("trt_engine_cache_enable", "1"),
            ("trt_fp16_enable", "1"),
            ("trt_max_workspace_size", "1073741824"),
        ]);
        assert_eq!(found.unwrap(), expected);
        let error = with(Accelerator::TensorRt, &[("precision_mode", "FP8")]).unwrap_err();
        assert_eq!(
            error,
            "the accelerator 'tensorrt': 'precision_mode' is 'FP8', expected 'FP32', 'FP16' or 'INT8'"
        );
    }

    /// Checks that options that this server manages itself are refused.
    #[test]
    fn options_that_cannot_be_kept_are_refused_by_name() {
        for (accelerator, key, expected) in [
            (
                Accelerator::Cuda,
                "device_id",
                "the accelerator 'cuda': the option 'device_id' is instance_group.gpus here; write that",
            ),
            (
                Accelerator::Cuda,
                "enable_cuda_graph",
                "the accelerator 'cuda': CUDA graphs ('enable_cuda_graph') are not supported: they replay a run with the memory of \
                 the first one, and requests bring their own",
            ),
            (
                Accelerator::OpenVino,
                "a\0b",
                "the accelerator 'openvino': the option 'a\\0b' has a zero byte",
            ),
        ] {
            assert_eq!(with(accelerator, &[(key, "1")]).unwrap_err(), expected);
        }
        assert!(with(Accelerator::Cuda, &[("enable_cuda_graph", "0")]).is_ok());
        assert!(with(Accelerator::OpenVino, &[("device_id", "GPU.0")]).is_ok());
    }
}
