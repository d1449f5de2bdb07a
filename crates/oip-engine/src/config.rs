//! How an engine works, as its operator chooses it.

use std::{thread, time::Duration};

use tensor_mmap::Promise;

use crate::{batching::scheduler::BatchPolicy, run::in_place::InPlace};

/// How an engine works.
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
    /// The server's name, for its metadata.
    pub server_name: String,
    /// The server's version, for its metadata.
    pub server_version: String,
    /// Threads per model version, where its configuration does not say (as many as the machine has cores).
    pub instances: usize,
    /// Rows of a batch that nobody configured ([`BatchPolicy::DEFAULT_MAX_ROWS`]); 0 so that requests are only joined
    /// where a configuration says so.
    pub default_max_batch_size: u64,
    /// How long an instance may go on with a request that nobody waits for any more before it counts as lost (5 s).
    pub hang_timeout: Duration,
    /// Whether and how quick models are run on the threads that their requests are on (they are not).
    pub in_place: Option<InPlace>,
    /// Called first on each thread that loads or runs models, for example to prepare an allocator (nothing).
    pub on_model_thread: fn(),
    /// Requests that may wait for one model version (256).
    pub queue_capacity: usize,
    /// Which models are loaded, and when (all of them, at start).
    pub control: ModelControl,
    /// Bytes of the cache for answers of models whose configuration wants one; with 0 there is none (0).
    pub response_cache_bytes: u64,
    /// The promise that files of the repository stay as they are, without which none is mapped (none).
    pub mapping: Option<Promise>,
    /// Models that are loaded at the same time (as many as the machine has cores).
    pub parallel_loads: usize,
    /// How long loading one model may take (120 s).
    pub load_timeout: Duration,
    /// Whether one model that fails to load makes the server not ready (yes).
    pub strict_readiness: bool,
}

/// Which models of a repository are loaded, and when; by Triton's names for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelControl {
    /// All, at start. What changes afterwards does not matter.
    None,
    /// All, at start, and whatever has come, changed or gone when the repository is looked at. A change counts once it
    /// was seen twice in the same form.
    Poll {
        /// How often to look.
        interval: Duration,
    },
    /// Those that are asked for.
    Explicit {
        /// Models to load at start; `*` stands for all.
        load: Vec<String>,
    },
}

impl EngineConfig {
    /// The same after some changes.
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
