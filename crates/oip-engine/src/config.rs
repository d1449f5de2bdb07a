//! Configuration of an engine.

use std::{thread, time::Duration};

use tensor_mmap::Promise;

use crate::{batching::scheduler::BatchPolicy, run::in_place::InPlace};

/// Configuration of an [`Engine`](crate::Engine).
///
/// ```
/// use oip_engine::{EngineConfig, ModelControl};
///
/// let config = EngineConfig::default().with(|config| {
///     config.instances = 2;
///     config.control = ModelControl::Explicit { load: Vec::new() };
/// });
/// assert_eq!(config.queue_capacity, 256);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Server name in the server metadata.
    pub server_name: String,
    /// Server version in the server metadata.
    pub server_version: String,
    /// Default number of instances per model version. Default: the number of cores.
    pub instances: usize,
    /// Default maximum number of rows of a batch; 0 to batch requests only where configured. Default:
    /// [`BatchPolicy::DEFAULT_MAX_ROWS`].
    pub default_max_batch_size: u64,
    /// How long an instance may run a request whose client is gone before the instance counts as hung.
    /// Default: 5 s.
    pub hang_timeout: Duration,
    /// Settings for running quick models on their callers' threads; `None` to use only the engine's threads.
    /// Default: `None`.
    pub in_place: Option<InPlace>,
    /// Function that each thread that loads or runs models calls first, for instance to set up an allocator.
    /// By default it does nothing.
    pub on_model_thread: fn(),
    /// Maximum number of waiting requests per model version. Default: 256.
    pub queue_capacity: usize,
    /// Which models are loaded, and when. Default: all models, at start.
    pub control: ModelControl,
    /// Size of the response cache for models that enable it, in bytes; 0 for no cache. Default: 0.
    pub response_cache_bytes: u64,
    /// Promise that the repository's files do not change, which permits mapping them into memory. Default:
    /// `None`.
    pub mapping: Option<Promise>,
    /// Maximum number of models that load concurrently. Default: the number of cores.
    pub parallel_loads: usize,
    /// Load timeout per model. Default: 120 s.
    pub load_timeout: Duration,
    /// Whether a model that fails to load makes the server unready. Default: true.
    pub strict_readiness: bool,
}

/// Which models of a repository are loaded, and when. The variants have Triton's names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelControl {
    /// Load all models at start, and ignore later changes.
    None,
    /// Load all models at start. At each poll, load added and changed models, and unload removed ones. A
    /// change takes effect once two consecutive polls see the same files.
    Poll {
        /// Time between two polls.
        interval: Duration,
    },
    /// Load the models that clients request.
    Explicit {
        /// Models to load at start; `*` for all.
        load: Vec<String>,
    },
}

impl EngineConfig {
    /// Applies `change` to the configuration and returns it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            server_name: "tensorferry".to_owned(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            instances: cores,
            default_max_batch_size: BatchPolicy::DEFAULT_MAX_ROWS,
            hang_timeout: Duration::from_secs(5),
            control: ModelControl::None,
            in_place: None,
            on_model_thread: || {},
            queue_capacity: 256,
            response_cache_bytes: 0,
            mapping: None,
            parallel_loads: cores,
            load_timeout: Duration::from_secs(120),
            strict_readiness: true,
        }
    }
}
