//! The items of a model's queue: requests, and work that callers leave to its threads.

use std::time::Instant;

use oip_service::RestOfRun;
use oip_types::{InferRequest, RequestedOutput};

use crate::run::{charging::Inputs, client::Client};

/// A request on its way to a thread.
pub(crate) struct Job {
    pub(crate) request: InferRequest,
    pub(crate) client: Client,
}

/// The rest of a run that a thread finishes, in the instance that the caller had.
pub(crate) enum Rest {
    /// Requests to be run together, which the caller only took.
    Batch { jobs: Vec<Job>, taken: Instant },
    /// A run that takes longer than the caller waits.
    Run { called: Called, rest: RestOfRun },
}

/// A request whose model is called, by itself.
pub(crate) struct Called {
    pub(crate) client: Client,
    pub(crate) wanted: Vec<RequestedOutput>,
    pub(crate) inputs: Inputs,
    /// When the request left the queue, and when the model was called.
    pub(crate) taken: Instant,
    pub(crate) start: Instant,
}
