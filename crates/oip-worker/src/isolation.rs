//! The operator's settings for workers: how to start them, and their limits.

use std::{process::Command, sync::Arc, time::Duration};

use bytes::Bytes;

/// How workers are started, and their limits.
#[derive(Clone)]
pub struct Isolation {
    pub(crate) command: Arc<dyn Fn() -> Command + Send + Sync>,
    pub(crate) by_default: bool,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) max_answer_bytes: u64,
    pub(crate) grace: Duration,
    pub(crate) first_bytes: Bytes,
}

impl Isolation {
    /// Starts workers with the command that `command` returns. The started program must call
    /// [`run`](crate::run). The name and version of the model are appended to its arguments, so that process
    /// lists show them. Standard input, output and error are replaced. The process inherits the server's
    /// environment.
    pub fn new(command: impl Fn() -> Command + Send + Sync + 'static) -> Self {
        Self {
            command: Arc::new(command),
            by_default: false,
            memory_limit: None,
            max_answer_bytes: 1 << 30,
            grace: Duration::from_secs(1),
            first_bytes: Bytes::new(),
        }
    }

    /// Sets whether models run in separate processes unless their configuration says otherwise (default:
    /// false).
    #[must_use]
    pub fn by_default(self, by_default: bool) -> Self {
        Self { by_default, ..self }
    }

    /// Sets the memory limit of a worker in bytes (default: none). The limit in the model's configuration
    /// takes precedence. The limit applies to the memory that the system can limit per process: on Linux
    /// private writable memory (`RLIMIT_DATA`), elsewhere address space (`RLIMIT_AS`).
    #[must_use]
    pub fn memory_limit(self, memory_limit: Option<u64>) -> Self {
        Self { memory_limit, ..self }
    }

    /// Sets the maximum size of a worker's response in bytes (default: 1 GiB).
    #[must_use]
    pub fn max_answer_bytes(self, max_answer_bytes: u64) -> Self {
        Self {
            max_answer_bytes,
            ..self
        }
    }

    /// Sets how long a worker may continue with an abandoned request before the worker is killed (default: 1
    /// s). The time must be shorter than the time after which the engine counts an instance as lost.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Sets bytes that a worker receives before the protocol starts (default: none). If the command is an
    /// interpreter, these bytes can be its program.
    #[must_use]
    pub fn first_bytes(self, first_bytes: Bytes) -> Self {
        Self { first_bytes, ..self }
    }
}
