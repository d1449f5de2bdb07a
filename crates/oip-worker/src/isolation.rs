//! How workers are started, and what they may do: the operator's choices.

use std::{process::Command, sync::Arc, time::Duration};

use bytes::Bytes;

/// How workers are started, and what they may do.
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
    /// Workers that are started by a command, which must come to call [`run`](crate::run). The name and version of the
    /// model are added to its arguments, so that a list of processes shows who is who; standard input, output and error
    /// are set as well. It gets the server's environment.
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

    /// Whether models have processes of their own whose configurations do not say (default: they do not).
    #[must_use]
    pub fn by_default(self, by_default: bool) -> Self {
        Self { by_default, ..self }
    }

    /// The bytes that a worker may use where the model's configuration does not say (default: as many as it likes). It is
    /// what the system can limit for a process: on Linux memory that is private and can be written (`RLIMIT_DATA`), elsewhere
    /// address space (`RLIMIT_AS`).
    #[must_use]
    pub fn memory_limit(self, memory_limit: Option<u64>) -> Self {
        Self { memory_limit, ..self }
    }

    /// The largest answer that is taken from a worker (default: 1 GiB).
    #[must_use]
    pub fn max_answer_bytes(self, max_answer_bytes: u64) -> Self {
        Self {
            max_answer_bytes,
            ..self
        }
    }

    /// How long a worker may go on with a request that nobody waits for, before it is killed (default: 1 s). Shorter than
    /// the time after which the engine counts an instance as lost.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// What a worker is sent before anything of the protocol, such as its program where the command is an interpreter
    /// (default: nothing).
    #[must_use]
    pub fn first_bytes(self, first_bytes: Bytes) -> Self {
        Self { first_bytes, ..self }
    }
}
