//! Options of the runtimes of models.

#[cfg(feature = "text")]
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use oip_types::ByteSize;
use serde::Deserialize;

#[cfg(feature = "onnx")]
use super::from_text::from_text;
use super::merge::merged;

/// Options of the runtimes of models.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct RuntimeOptions {
    /// Maximum response size for models that are tensor files, where a small request can produce a large
    /// response [default: 64MiB]
    #[cfg(feature = "tensors")]
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_answer_size: Option<ByteSize>,

    /// Tokens of one run of a text model, padding included; texts of similar length run together [default:
    /// 256]
    #[cfg(feature = "text")]
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_batch_tokens: Option<NonZeroUsize>,

    /// The library of ONNX Runtime (libonnxruntime.so, 1.17 or newer) to run ONNX models with instead of the
    /// built-in runtime, or `auto` to look for one: next to the program, by `ORT_DYLIB_PATH`, in the active
    /// virtual environment, among python3's packages and the system's libraries. Without this option
    /// `ORT_DYLIB_PATH` in the environment names it
    #[arg(long, value_name = "PATH")]
    pub(crate) onnxruntime: Option<PathBuf>,

    /// GPUs for ONNX models whose configuration does not say what they run on (`KIND_AUTO`): `all`, `none`,
    /// or numbers as CUDA has them (`0,1`). It needs a library of ONNX Runtime with a provider for GPUs
    /// [default: all that NVML shows; none without NVML]
    #[cfg(feature = "onnx")]
    #[arg(long, value_name = "GPUS")]
    #[serde(deserialize_with = "from_text")]
    pub(crate) gpus: Option<backend_onnx::GpuChoice>,

    /// Whether ONNX models run in separate processes, so that a crash affects only that model. The
    /// parameter `isolation` in a model's configuration decides for one model, also for boosters and tensor
    /// files [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) isolate_models: Option<bool>,

    /// Memory that each such process may use, where the model's configuration has no parameter `memory_limit`
    /// [default: as much as there is]
    #[arg(long, value_name = "SIZE")]
    pub(crate) model_memory_limit: Option<ByteSize>,

    /// Whether models may be Python programs (model.py), which run with this server's rights, in processes of
    /// their own. Use it only if you trust everybody who can write to the repository [default: false]
    #[cfg(feature = "python")]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_python: Option<bool>,

    /// Whether models may be pickled estimators of scikit-learn (model.joblib, model.pkl), which can run any
    /// code when they are read [default: false]
    #[cfg(feature = "python")]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_pickle: Option<bool>,

    /// The interpreter that runs them: a program, or the directory of a venv or conda environment. It needs
    /// numpy. A model's configuration can name another with the parameter `python` [default: python3]
    #[cfg(feature = "python")]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
}

merged!(RuntimeOptions:
    #[cfg(feature = "tensors")] max_answer_size #[cfg(feature = "text")] max_batch_tokens onnxruntime
    #[cfg(feature = "onnx")] gpus isolate_models model_memory_limit
    #[cfg(feature = "python")] allow_python #[cfg(feature = "python")] allow_pickle
    #[cfg(feature = "python")] python
);
