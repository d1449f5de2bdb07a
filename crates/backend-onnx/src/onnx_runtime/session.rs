//! The session of a model: one, which any number of runs use at the same time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_types::ServiceError;
use onnx_graph::{Dim, Port};
use onnx_session::SharedSession;
use ort::session::{RunOptions, builder::SessionBuilder};

use super::OnnxRuntime;

/// How often a run gives memory back to the system that earlier ones left in ONNX Runtime's pool. More often would cost
/// time, never would keep for good what the largest request took.
const SHRINK_EVERY: Duration = Duration::from_secs(10);

/// The least that one value may take which ONNX Runtime computes before the first request, in bytes.
const FOLDED: usize = 1 << 20;

/// Makes the session of a model. Its constants are in memory once, and so is what is made of them for faster products.
pub(super) fn open(
    runtime: &OnnxRuntime,
    content: &Bytes,
    inputs: &[Port],
    threads: usize,
) -> Result<SharedSession, ServiceError> {
    let made = make(runtime, content, inputs, threads);
    made.map_err(|error| {
        let reason = error.message().replace('\n', " ");
        ServiceError::invalid(format!("ONNX Runtime refuses the model: {}", reason.trim())).caused_by(error)
    })
}

fn make(
    runtime: &OnnxRuntime,
    content: &Bytes,
    inputs: &[Port],
    threads: usize,
) -> ort::Result<SharedSession> {
    // A plan of memory is kept for every shape that was ever asked for: no more than one with fixed dimensions.
    let is_fixed = |port: &Port| port.dims.iter().flatten().all(|dim| matches!(dim, Dim::Fixed(_)));
    let mut builder = SessionBuilder::new(runtime.environment())?
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?
        .with_env_allocators()?
        // What weights take is known from the file, and does not count.
        .with_config_entry("session.use_device_allocator_for_initializers", "1")?
        .with_memory_pattern(inputs.iter().all(is_fixed))?
        // Without this, a file with the letters ORTM near its beginning is read as ORT's own format, which is not checked here.
        .with_config_entry("session.load_model_format", "ONNX")?
        // All of a chain of such values are in memory together. Weights of 16 bits become twice as large. Versions that do not know the
        // entry pass over it.
        .with_config_entry(
            "optimization.constant_folding_max_output_size_in_bytes",
            content.len().saturating_mul(2).max(FOLDED).to_string(),
        )?;
    SharedSession::new(builder.commit_from_memory(content)?)
}

/// Gives each run its options, and some of them the task to give memory back.
pub(super) struct Runs {
    last_shrink: Mutex<Instant>,
}

impl Runs {
    pub(super) fn new() -> Self {
        Self {
            last_shrink: Mutex::new(Instant::now()),
        }
    }

    /// The options of one run.
    pub(super) fn options(&self) -> ort::Result<Arc<RunOptions>> {
        let mut options = RunOptions::new()?;
        if self.is_time_to_shrink() {
            options.set("memory.enable_memory_arena_shrinkage", "cpu:0")?;
        }
        Ok(Arc::new(options))
    }

    fn is_time_to_shrink(&self) -> bool {
        let mut last = self.last_shrink.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = last.elapsed() >= SHRINK_EVERY;
        if is_time {
            *last = Instant::now();
        }
        is_time
    }
}
