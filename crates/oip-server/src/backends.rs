//! Creates the backends, in this process and in worker processes.

use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Parser;
use oip_engine::ModelStatus;
use oip_service::{Backend, ByteBudget};
use oip_worker::{IsolatedBackend, Isolation, this_program};

use oip_types::ByteSize;

use crate::{
    failure::Failure,
    options::{Options, RuntimeOptions, mistakes::one_line},
    telemetry::start_in_worker,
};

/// The first argument of a worker process, which runs one model for a server. It cannot be confused with an
/// option and is not meant for users.
pub(crate) const WORKER: &str = "worker";

/// The value of `--onnxruntime` that requests a search for the library.
#[cfg(feature = "onnx")]
const AUTO: &str = "auto";

/// The settings for creating backends.
#[derive(Clone)]
pub(crate) struct BackendConfig {
    options: RuntimeOptions,
    /// Memory limit for ONNX Runtime's values in bytes.
    #[cfg(feature = "onnx")]
    onnxruntime_memory: Option<u64>,
    #[cfg_attr(
        not(feature = "tensors"),
        expect(dead_code, reason = "only rows of tensor files count")
    )]
    budget: ByteBudget,
    /// Number of compute threads, if it differs from the number of cores.
    threads: Option<NonZeroUsize>,
    /// Log levels for worker processes.
    log: String,
}

impl BackendConfig {
    /// Creates the settings. Without the option `--onnxruntime`, the environment variable `ORT_DYLIB_PATH`
    /// gives the path of the library.
    pub(crate) fn new(options: &Options, budget: ByteBudget) -> Self {
        let mut runtimes = options.runtimes.clone();
        runtimes.onnxruntime = runtimes.onnxruntime.or_else(|| {
            let path = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty());
            path.map(PathBuf::from)
        });
        Self {
            options: runtimes,
            #[cfg(feature = "onnx")]
            onnxruntime_memory: options.file.onnxruntime_memory.map(|ByteSize(bytes)| bytes),
            budget,
            threads: options.models.threads,
            log: options.log.filter(),
        }
    }

    /// Returns the memory limit of isolated models in bytes.
    fn memory_limit(&self) -> Option<u64> {
        self.options.model_memory_limit.map(|ByteSize(bytes)| bytes)
    }

    /// Creates the server's backends, in the order in which they claim files. Any model can be isolated in
    /// its own process. `--isolate-models` applies only to backends that run code from files; tree and tensor
    /// backends do not.
    pub(crate) fn isolated(&self) -> Result<Vec<Arc<dyn Backend>>, Failure> {
        #[cfg(feature = "onnx")]
        if let Some(bytes) = self.onnxruntime_memory {
            backend_onnx::OnnxRuntime::limit_memory(bytes);
        }
        let found = self.with_library_found();
        let isolation = |brings_code: bool| {
            let config = found.clone();
            Isolation::new(move || config.worker())
                .by_default(self.options.isolate_models.unwrap_or(false) && brings_code)
                .memory_limit(self.memory_limit())
        };
        let backends = found.plain()?.into_iter().map(|backend| {
            let isolation = isolation(!matches!(backend.name(), "forest" | "tensors" | "text-step"));
            Arc::new(IsolatedBackend::new(backend, isolation)) as Arc<dyn Backend>
        });
        #[cfg_attr(not(feature = "python"), expect(unused_mut, reason = "nothing is added"))]
        let mut backends: Vec<_> = backends.collect();
        #[cfg(feature = "python")]
        self.add_python(&mut backends);
        Ok(backends)
    }

    /// Adds the backends for Python models, which are always isolated. If Python is allowed, the backend for
    /// `model.py` comes first, because the model's directory often contains weights too. Otherwise that
    /// backend comes last and only reports that Python is not allowed.
    #[cfg(feature = "python")]
    fn add_python(&self, backends: &mut Vec<Arc<dyn Backend>>) {
        use backend_python::{BoosterBackend, PythonBackend, SavedObjectBackend, Settings};

        let settings = |is_allowed: Option<bool>| {
            Settings::default().with(|settings| {
                settings.is_allowed = is_allowed.unwrap_or(false);
                settings.memory_limit = self.memory_limit();
                if let Some(python) = &self.options.python {
                    settings.interpreter.clone_from(python);
                }
            })
        };
        let programs = settings(self.options.allow_python);
        for backend in backends.iter_mut().filter(|backend| backend.name() == "forest") {
            *backend = Arc::new(BoosterBackend::new(backend.clone(), programs.clone()));
        }
        let first = if programs.is_allowed { 0 } else { backends.len() };
        backends.insert(first, Arc::new(PythonBackend::new(programs)));
        let objects = settings(self.options.allow_pickle);
        backends.push(Arc::new(SavedObjectBackend::new(objects)));
    }

    /// If the library is to be searched for, finds it and sets its path, so that workers use the same
    /// library.
    fn with_library_found(&self) -> Self {
        #[cfg(feature = "onnx")]
        if self.options.onnxruntime.as_deref() == Some(std::path::Path::new(AUTO)) {
            let found = backend_onnx::OnnxRuntime::find();
            if let Err(error) = &found {
                tracing::info!(
                    reason = error.message(),
                    "ONNX models run on the built-in runtime alone"
                );
            }
            let mut config = self.clone();
            config.options.onnxruntime = found.ok().map(|runtime| runtime.path().to_owned());
            return config;
        }
        self.clone()
    }

    /// Creates the backends without isolation.
    fn plain(&self) -> Result<Vec<Arc<dyn Backend>>, Failure> {
        #[cfg(feature = "onnx")]
        backend_onnx::OnnxBackend::limit_threads(self.threads, caching_allocator::mark_compute_thread);
        #[cfg(feature = "onnx")]
        let onnx: Arc<dyn Backend> = Arc::new(onnx(
            self.options.onnxruntime.as_deref(),
            self.options.gpus.as_ref(),
        )?);
        Ok(vec![
            // The text backend comes first, because its directories contain ONNX models, which the ONNX
            // backend would claim.
            #[cfg(feature = "text")]
            Arc::new(oip_text::TextBackend::new(onnx.clone(), self.text_options())),
            // The ONNX backend comes before the others, because a directory with an ONNX model often contains
            // its weights too.
            #[cfg(feature = "onnx")]
            onnx,
            #[cfg(feature = "forest")]
            Arc::new(backend_forest::ForestBackend::new()),
            #[cfg(feature = "tensors")]
            Arc::new(
                backend_tensors::TensorsBackend::new()
                    .with_max_answer_bytes(self.options.max_answer_size.map_or(64 << 20, |size| size.0))
                    .with_budget(self.budget.clone()),
            ),
            #[cfg(feature = "text")]
            Arc::new(oip_text::TextStepBackend::new(self.text_options())),
        ])
    }

    /// Returns the options of the text backend.
    #[cfg(feature = "text")]
    fn text_options(&self) -> oip_text::TextOptions {
        oip_text::TextOptions::default().with(|options| {
            if let Some(tokens) = self.options.max_batch_tokens {
                options.max_batch_tokens = tokens.get();
            }
        })
    }

    /// Returns the command that runs this program as a worker with the same backends. The command has all
    /// options as arguments, even those from the environment, because a worker reads no `OIP_` variables.
    fn worker(&self) -> std::process::Command {
        let mut command = std::process::Command::new(this_program());
        command.arg(WORKER).arg(format!("--log={}", self.log));
        if let Some(threads) = self.threads {
            command.arg(format!("--threads={threads}"));
        }
        if let Some(library) = &self.options.onnxruntime {
            command.arg("--onnxruntime").arg(library);
        }
        #[cfg(feature = "onnx")]
        if let Some(gpus) = &self.options.gpus {
            command.arg(format!("--gpus={gpus}"));
        }
        #[cfg(feature = "text")]
        if let Some(tokens) = self.options.max_batch_tokens {
            command.arg(format!("--max-batch-tokens={tokens}"));
        }
        #[cfg(feature = "tensors")]
        if let Some(size) = self.options.max_answer_size {
            command.arg(format!("--max-answer-size={size}"));
        }
        command
    }
}

/// Runs a worker. The arguments are `worker`, options, and the model's name, which is only shown in process
/// lists.
pub(crate) fn work(arguments: impl Iterator<Item = OsString>) -> Result<ExitCode, Failure> {
    let mut arguments: Vec<OsString> = arguments.collect();
    arguments.pop();
    let arguments = [OsString::from("oip-server")].into_iter().chain(arguments);
    let options = Options::try_parse_from(arguments).map_err(|error| Failure::usage(one_line(&error)))?;
    // A worker handles the tensors of one request at a time, whose size is already limited.
    let config = BackendConfig::new(&options, ByteBudget::new(u64::MAX));
    start_in_worker(&config.log)?;
    caching_allocator::mark_compute_process();
    Ok(oip_worker::run(&config.plain()?))
}

/// Returns advice in one sentence if some models need ONNX Runtime; `None` otherwise.
#[cfg(feature = "onnx")]
pub(crate) fn advice(models: &[ModelStatus]) -> Option<String> {
    let needs = |model: &&ModelStatus| backend_onnx::OnnxBackend::needs_onnx_runtime(&model.reason);
    let count = models.iter().filter(needs).count();
    let total = models.len();
    let advice = || match backend_onnx::OnnxRuntime::first_place() {
        Some(path) => format!(
            "{count} of {total} models need ONNX Runtime; found one at {}: start with --onnxruntime auto",
            path.display()
        ),
        None => format!(
            "{count} of {total} models need ONNX Runtime; found none: pip install onnxruntime brings one, which \
             --onnxruntime auto finds"
        ),
    };
    (count > 0).then(advice)
}

#[cfg(not(feature = "onnx"))]
pub(crate) fn advice(_: &[ModelStatus]) -> Option<String> {
    None
}

/// Creates the ONNX backend. An unusable library is reported before models are loaded.
#[cfg(feature = "onnx")]
fn onnx(
    library: Option<&std::path::Path>,
    gpus: Option<&backend_onnx::GpuChoice>,
) -> Result<backend_onnx::OnnxBackend, Failure> {
    let backend = backend_onnx::OnnxBackend::new();
    let Some(path) = library else {
        if gpus.is_some_and(|gpus| *gpus != backend_onnx::GpuChoice::None) {
            tracing::warn!(
                "--gpus has no effect without a library of ONNX Runtime, which --onnxruntime names"
            );
        }
        return Ok(backend);
    };
    let runtime = backend_onnx::OnnxRuntime::load(path).map_err(|error| {
        Failure::run(format!(
            "{} (--onnxruntime or ORT_DYLIB_PATH names it)",
            error.message()
        ))
    })?;
    let (path, build) = (runtime.path().display(), runtime.build());
    let package = runtime.package();
    let providers = runtime.providers().join(", ");
    tracing::info!(%path, package, providers, build, "loaded ONNX Runtime");
    let gpus = found_gpus(&runtime, gpus.cloned().unwrap_or_default());
    Ok(backend.with_runtime(runtime).with_gpus(gpus))
}

/// Returns the GPUs of this machine. They are detected only if the library has a GPU provider.
#[cfg(feature = "onnx")]
fn found_gpus(runtime: &backend_onnx::OnnxRuntime, choice: backend_onnx::GpuChoice) -> backend_onnx::Gpus {
    let has_provider = runtime
        .providers()
        .iter()
        .any(|provider| provider == "CUDAExecutionProvider");
    #[cfg(feature = "gpu")]
    if has_provider {
        let gpus = crate::gpus::gpus(choice);
        let seen = gpus.seen().map(|seen| {
            let seen = seen.iter().enumerate();
            let seen: Vec<String> = seen
                .map(|(index, gpu)| format!("{index}: {}", gpu.name))
                .collect();
            seen.join(", ")
        });
        tracing::info!(seen, taken = ?gpus.free_to_take(), "GPUs for models that do not ask for one");
        return gpus;
    }
    let _ = has_provider;
    backend_onnx::Gpus::new(choice)
}

#[cfg(feature = "text")]
#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that worker processes get `max-batch-tokens` as an argument if the configuration file sets it.
    #[test]
    fn workers_get_the_largest_batch_of_text_models() {
        let options = Options::from_file("max-batch-tokens = 7\nthreads = 3").unwrap();
        let command = BackendConfig::new(&options, ByteBudget::new(1)).worker();
        let arguments = command.get_args().skip(1).map(ToOwned::to_owned);
        let arguments = [OsString::from("oip-server")].into_iter().chain(arguments);
        let config = BackendConfig::new(&Options::parse_from(arguments), ByteBudget::new(1));
        assert_eq!(config.options.max_batch_tokens, NonZeroUsize::new(7));
        assert_eq!(config.threads, NonZeroUsize::new(3));
    }
}
