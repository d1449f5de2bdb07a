//! The crate's entry point: chooses the runtime for a model, and loads the model there.

use std::num::NonZeroUsize;

use bytes::Bytes;
use oip_model::{Backend, IndependentRows, LoadContext, Model, ModelSource, NeedsProcess, RowIndependence};
use oip_types::{ModelConfig, ServiceError};
use onnx_graph::{Signature, decode, external, independence, proto::ModelProto, rewrite, training};
use onnx_tensor::threads;
use tensor_core::QuotedName;

use crate::{
    built_in::{BUILT_IN, OnnxModel},
    configured_dims,
    file_error::refusal,
    onnx_runtime::{Gpus, OnnxRuntime, OrtModel, check_accelerators, demands_gpu, names_accelerators},
    runtime_limit,
    thread_count::thread_count,
};

/// Loads ONNX models with the built-in runtime, or with ONNX Runtime if it is available.
///
/// A model's configuration selects the runtime in its field `runtime`: `onnxruntime`, `built-in`, or `auto`,
/// which is the built-in one unless that refuses the model. The default is ONNX Runtime if available,
/// otherwise the built-in runtime. The model parameter `intra_op_thread_count` is the maximum number of
/// threads per run; 0 means all threads. The default is 1 with ONNX Runtime, and all idle threads with the
/// built-in runtime.
#[derive(Clone, Debug, Default)]
pub struct OnnxBackend {
    runtime: Option<OnnxRuntime>,
    gpus: Gpus,
}

impl OnnxBackend {
    /// Creates a backend with the built-in runtime only.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds ONNX Runtime as a second runtime.
    #[must_use]
    pub fn with_runtime(self, runtime: OnnxRuntime) -> Self {
        Self {
            runtime: Some(runtime),
            ..self
        }
    }

    /// Sets the GPUs of this machine, for ONNX Runtime. Without this call, models use a GPU only where their
    /// configuration requires one.
    #[must_use]
    pub fn with_gpus(self, gpus: Gpus) -> Self {
        Self { gpus, ..self }
    }

    /// Limits the number of threads that compute on the built-in runtime at a time: those of requests and
    /// their helpers together. The default is the number of cores that the process may use. Each helper
    /// thread calls `on_start` first. Call this before the first model runs.
    pub fn limit_threads(threads: Option<NonZeroUsize>, on_start: fn()) {
        threads::configure(threads.map_or_else(threads::limit, NonZeroUsize::get), on_start);
    }

    /// Returns whether a model's load error says that ONNX Runtime could run the model.
    #[must_use]
    pub fn needs_onnx_runtime(reason: &str) -> bool {
        reason.contains(runtime_limit::OTHER_RUNTIME)
    }

    /// Chooses the runtime for the model `name` with this configuration.
    fn choose(&self, name: &str, config: &ModelConfig) -> Result<Choice<'_>, ServiceError> {
        // A misspelled name is an error with each runtime.
        check_accelerators(config)?;
        let choice = self.choose_by_name(name, config)?;
        match choice {
            // The built-in runtime only supports the CPU.
            Choice::Auto(runtime) if demands_gpu(config) || names_accelerators(config) => {
                Ok(Choice::OnnxRuntime(runtime))
            }
            Choice::BuiltIn if demands_gpu(config) => Err(ServiceError::invalid(match &self.runtime {
                Some(_) => "the model's configuration demands a GPU (KIND_GPU) and the built-in runtime, \
                            which supports only the CPU; remove runtime, or set KIND_CPU"
                    .to_owned(),
                None => format!(
                    "the model's configuration demands a GPU (KIND_GPU), which needs a library of ONNX Runtime: {HOW_TO_START_ON_GPU}"
                ),
            })),
            Choice::BuiltIn if names_accelerators(config) => {
                tracing::warn!(
                    model = name,
                    "optimization.execution_accelerators has no effect on the built-in runtime; it needs ONNX Runtime"
                );
                Ok(choice)
            }
            choice => Ok(choice),
        }
    }

    fn choose_by_name(&self, name: &str, config: &ModelConfig) -> Result<Choice<'_>, ServiceError> {
        match (config.runtime.as_str(), &self.runtime) {
            ("auto", Some(runtime)) => Ok(Choice::Auto(runtime)),
            // The last string is Triton's library name for its ONNX Runtime backend.
            ("" | "onnxruntime" | "libtriton_onnxruntime.so", Some(runtime)) => {
                Ok(Choice::OnnxRuntime(runtime))
            }
            (TRACT, _) => {
                tracing::warn!(
                    model = name,
                    "the runtime 'tract' is now called 'built-in'; use that name in the model's configuration"
                );
                Ok(Choice::BuiltIn)
            }
            (BUILT_IN, _) | ("" | "auto" | "libtriton_onnxruntime.so", None) => Ok(Choice::BuiltIn),
            ("onnxruntime", None) => Err(ServiceError::invalid(format!(
                "the model's configuration asks for ONNX Runtime, which the server does not have: {HOW_TO_START}"
            ))),
            (other, _) => Err(ServiceError::invalid(format!(
                "the model's configuration asks for the runtime {}, expected 'onnxruntime', 'built-in' or 'auto'",
                QuotedName(other)
            ))),
        }
    }
}

/// A former name of the built-in runtime, which configurations may still use.
const TRACT: &str = "tract";

/// The runtime choice for a model.
#[derive(Clone, Copy)]
enum Choice<'r> {
    BuiltIn,
    OnnxRuntime(&'r OnnxRuntime),
    /// The built-in runtime, with ONNX Runtime for models that the built-in runtime refuses.
    Auto(&'r OnnxRuntime),
}

const HOW_TO_USE_FOUND: &str =
    "start the server with --onnxruntime auto, which finds a library of it on this machine";

const HOW_TO_START_ON_GPU: &str = "pip install 'onnxruntime-gpu[cuda,cudnn]' brings one, which --onnxruntime auto finds; with KIND_AUTO the \
                                   model runs on the CPU where there is no GPU";

const HOW_TO_START: &str = "start the server with --onnxruntime PATH (the library libonnxruntime, 1.17 or newer; pip \
                            install onnxruntime brings one)";

impl Backend for OnnxBackend {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn other_names(&self) -> &'static [&'static str] {
        &["onnx_onnxv1", "onnxruntime", "onnxruntime_onnx"]
    }

    fn file_names(&self) -> &[&str] {
        &["model.onnx"]
    }

    fn files_beside(&self, content: &Bytes) -> Result<Vec<String>, ServiceError> {
        external::names(&decode(content).map_err(refusal)?).map_err(refusal)
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let choice = self.choose(&source.name, &cx.config)?;
        let mut model = decode(&source.content).map_err(refusal)?;
        external::take_in(&mut model, &source.beside).map_err(refusal)?;
        training::refuse(&model).map_err(refusal)?;
        rewrite::cut_zip_maps(&mut model);
        rewrite::drop_repeated_outputs(&mut model);
        rewrite::name_outputs(&mut model);
        let rows = row_independence(&model, cx)?;
        let loaded = match choice {
            Choice::BuiltIn => self.with_built_in(source, &model, rows, cx)?,
            Choice::OnnxRuntime(runtime) => self.with_onnx_runtime(runtime, source, &model, rows, cx)?,
            Choice::Auto(runtime) => self.with_either(runtime, source, &model, rows, cx)?,
        };
        let (model, version) = (&source.name, &source.version);
        let runtime = loaded.capabilities().runtime;
        tracing::info!(model, version, runtime, "prepared a model");
        Ok(loaded)
    }
}

impl OnnxBackend {
    fn with_built_in(
        &self,
        source: &ModelSource,
        model: &ModelProto,
        rows: RowIndependence,
        cx: &LoadContext,
    ) -> Result<Box<dyn Model>, ServiceError> {
        let loaded = OnnxModel::load(source, model, cx);
        let how = match (&self.runtime, &loaded) {
            (Some(_), _) => "set runtime to 'onnxruntime' in the model's configuration",
            (None, Err(_)) if OnnxRuntime::is_found() => HOW_TO_USE_FOUND,
            (None, _) => HOW_TO_START,
        };
        let loaded = loaded.map_err(|error| runtime_limit::with_ways_out(error, model, how))?;
        Ok(Box::new(loaded.with_row_independence(rows)))
    }

    /// Loads the model with the built-in runtime, or with ONNX Runtime if the built-in one refuses it. If
    /// both refuse it, returns the built-in runtime's error, which says what to do.
    fn with_either(
        &self,
        runtime: &OnnxRuntime,
        source: &ModelSource,
        model: &ModelProto,
        rows: RowIndependence,
        cx: &LoadContext,
    ) -> Result<Box<dyn Model>, ServiceError> {
        let refusal = match self.with_built_in(source, model, rows.clone(), cx) {
            Ok(loaded) => return Ok(loaded),
            Err(refusal) => refusal,
        };
        tracing::info!(
            model = source.name,
            reason = refusal.message(),
            "the built-in runtime refuses a model, trying ONNX Runtime"
        );
        let loaded = self.with_onnx_runtime(runtime, source, model, rows, cx);
        loaded.map_err(|error| match NeedsProcess::behind(&error) {
            Some(_) => error,
            None => refusal,
        })
    }

    fn with_onnx_runtime(
        &self,
        runtime: &OnnxRuntime,
        source: &ModelSource,
        model: &ModelProto,
        rows: RowIndependence,
        cx: &LoadContext,
    ) -> Result<Box<dyn Model>, ServiceError> {
        let threads = thread_count(&cx.config)?.unwrap_or(1);
        let loaded = OrtModel::load(runtime, &self.gpus, source, model, threads, cx)?;
        Ok(Box::new(loaded.with_row_independence(rows)))
    }
}

/// Analyzes the graph's row independence, which does not depend on the runtime.
fn row_independence(model: &ModelProto, cx: &LoadContext) -> Result<RowIndependence, ServiceError> {
    let mut signature = Signature::of(model).map_err(refusal)?;
    configured_dims::fix(&mut signature, cx).map_err(refusal)?;
    Ok(match independence::prove(model, &signature.inputs) {
        Ok(proof) => {
            let mut independent = IndependentRows::default();
            independent.shared_inputs = proof.shared_inputs;
            independent.equal_dims = proof.equal_dims;
            independent.max_rows = independence::MAX_ROWS;
            independent.max_dim = independence::MAX_DIM;
            RowIndependence::Proven(independent)
        }
        Err(reason) => RowIndependence::Unproven(reason),
    })
}
