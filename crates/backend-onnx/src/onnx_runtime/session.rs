//! A session of a model on one device, shared by concurrent runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_types::ServiceError;
use onnx_graph::{Dim, Port};
use onnx_session::SharedSession;
use ort::session::{RunOptions, builder::SessionBuilder};
use parking_lot::Mutex;

use super::{
    OnnxRuntime,
    faults::words,
    log,
    providers::{Accelerator, ConfiguredAccelerator, Libraries, advice, missing_text},
};

/// Interval at which a run releases the memory that earlier runs left in ONNX Runtime's pool. Releasing more
/// often costs time; never releasing would keep the peak of the largest request forever.
const SHRINK_EVERY: Duration = Duration::from_secs(10);

/// Minimum size limit in bytes for a value that constant folding computes.
const FOLDED: usize = 1 << 20;

/// The parameters for creating a session, except the model.
#[derive(Clone, Copy)]
pub(super) struct Settings<'s> {
    pub(super) runtime: &'s OnnxRuntime,
    pub(super) inputs: &'s [Port],
    /// Threads per run on the CPU.
    pub(super) threads: usize,
}

/// Creates a session on the CPU. Constants, and the weights packed from them, are in memory only once.
pub(super) fn open(settings: Settings<'_>, content: &Bytes) -> Result<SharedSession, ServiceError> {
    let made = builder(settings, content).and_then(|builder| commit(builder, content));
    made.map_err(|error| {
        let reason = error.message().replace('\n', " ");
        ServiceError::invalid(format!("ONNX Runtime refuses the model: {}", reason.trim())).caused_by(error)
    })
}

/// Creates a session with execution providers in addition to the CPU's, on the GPU `gpu` if it is set.
pub(super) fn open_with(
    settings: Settings<'_>,
    content: &Bytes,
    providers: &[ConfiguredAccelerator],
    gpu: Option<u32>,
) -> Result<SharedSession, ServiceError> {
    let place = gpu.map_or(String::new(), |gpu| format!(" on GPU {gpu}"));
    let refused = |error: ort::Error| {
        // OpenVINO's provider puts its function signatures before the message.
        let said = error.message().rsplit_once("[OpenVINO-EP] ");
        let reason = words(said.map_or(error.message(), |(_, said)| said));
        let advice = advice(error.message()).map_or(String::new(), |advice| format!(": {advice}"));
        let names: Vec<&str> = providers.iter().map(|chosen| chosen.accelerator.name()).collect();
        ServiceError::invalid(format!(
            "ONNX Runtime refuses the model{place} with {}: {reason}{advice}",
            names.join(" and ")
        ))
        .caused_by(error)
    };
    let mut builder = builder(settings, content).map_err(refused)?;
    for chosen in providers {
        register(settings.runtime, &chosen.on(gpu), &mut builder, &place)?;
    }
    commit(builder, content).map_err(refused)
}

/// Adds a provider to a session, or reports its missing libraries.
fn register(
    runtime: &OnnxRuntime,
    chosen: &ConfiguredAccelerator,
    builder: &mut SessionBuilder,
    place: &str,
) -> Result<(), ServiceError> {
    let libraries = Libraries::of(chosen.accelerator, runtime.path());
    libraries.preload();
    let (added, logged) = log::with_last_error(|| chosen.register(builder));
    let later = match &added {
        Ok(()) if chosen.accelerator == Accelerator::Cuda => libraries.missing_later(),
        _ => Vec::new(),
    };
    if !later.is_empty() {
        tracing::warn!(
            "libraries are missing, and CUDA operators that need them will fail: {}",
            missing_text(&later)
        );
    }
    added.map_err(|error| {
        let name = chosen.accelerator.name();
        let missing = libraries.missing();
        let message = match missing.is_empty() {
            false => format!(
                "the accelerator '{name}' cannot be used{place}: libraries are missing: {}",
                missing_text(&missing)
            ),
            true => {
                let advice = advice(error.message()).map_or(String::new(), |advice| format!(": {advice}"));
                // OpenVINO's provider logs which option it refuses, and does not return it.
                let logged = match words(logged.trim()) {
                    logged if logged.is_empty() || error.message().contains(&*logged) => String::new(),
                    logged => format!(": {logged}"),
                };
                let options: Vec<&str> = chosen.options.keys().map(String::as_str).collect();
                let options = match options.is_empty() {
                    true => String::new(),
                    false => format!(" (its options: {})", options.join(", ")),
                };
                format!(
                    "the accelerator '{name}' cannot be used{place}: {}{options}{logged}{advice}",
                    words(error.message())
                )
            }
        };
        ServiceError::invalid(message).caused_by(error)
    })
}

fn commit(mut builder: SessionBuilder, content: &Bytes) -> ort::Result<SharedSession> {
    SharedSession::new(builder.commit_from_memory(content)?)
}

fn builder(settings: Settings<'_>, content: &Bytes) -> ort::Result<SessionBuilder> {
    let Settings {
        runtime,
        inputs,
        threads,
    } = settings;
    // ONNX Runtime keeps a memory plan for every input shape that it has seen. Planning is enabled only for
    // fixed dimensions, where there is one plan.
    let is_fixed = |port: &Port| port.dims.iter().flatten().all(|dim| matches!(dim, Dim::Fixed(_)));
    let builder = SessionBuilder::new(runtime.environment())?
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?
        .with_env_allocators()?
        // The memory of weights does not count against the limit, since their size is known from the file.
        .with_config_entry("session.use_device_allocator_for_initializers", "1")?
        .with_memory_pattern(inputs.iter().all(is_fixed))?
        // By default, ONNX Runtime reads a file with the letters ORTM near its beginning in its own format,
        // which is not checked here.
        .with_config_entry("session.load_model_format", "ONNX")?
        // Limits constant folding: all values of a folded chain are in memory together, and 16-bit weights
        // double in size. Versions of ONNX Runtime that lack the entry ignore it.
        .with_config_entry(
            "optimization.constant_folding_max_output_size_in_bytes",
            content.len().saturating_mul(2).max(FOLDED).to_string(),
        )?;
    Ok(builder)
}

/// Creates the options for the runs of a session. At most once per [`SHRINK_EVERY`], a run also releases
/// memory.
pub(super) struct Runs {
    last_shrink: Mutex<Instant>,
    gpu: Option<u32>,
    /// Whether the GPU's memory cannot be released.
    keeps_gpu_memory: AtomicBool,
}

impl Runs {
    /// Creates the options for a session on a GPU, or on the CPU if `gpu` is `None`.
    pub(super) fn new(gpu: Option<u32>) -> Self {
        Self {
            last_shrink: Mutex::new(Instant::now()),
            gpu,
            keeps_gpu_memory: AtomicBool::new(false),
        }
    }

    /// Returns the options for one run. If memory was last released long ago, they make this run release it.
    pub(super) fn options(&self) -> ort::Result<Arc<RunOptions>> {
        let mut options = RunOptions::new()?;
        if self.is_time_to_shrink() {
            let gpu = self
                .gpu
                .filter(|_| !self.keeps_gpu_memory.load(Ordering::Relaxed));
            let arenas = gpu.map_or("cpu:0".to_owned(), |gpu| format!("cpu:0;gpu:{gpu}"));
            options.set("memory.enable_memory_arena_shrinkage", arenas)?;
        }
        Ok(Arc::new(options))
    }

    /// Returns whether a run failed only because the provider's memory is not an arena that can be shrunk.
    /// Later runs then do not try to release memory.
    pub(super) fn must_keep_memory(&self, error: &ort::Error) -> bool {
        let is_so = self.gpu.is_some() && error.message().contains("memory arena shrink list");
        is_so && !self.keeps_gpu_memory.swap(true, Ordering::Relaxed)
    }

    fn is_time_to_shrink(&self) -> bool {
        let mut last = self.last_shrink.lock();
        let is_time = last.elapsed() >= SHRINK_EVERY;
        if is_time {
            *last = Instant::now();
        }
        is_time
    }
}
