//! The items of a model's queue: requests, and unfinished runs that callers pass to threads.

use std::time::Instant;

use oip_model::RestOfRun;
use oip_types::{InferRequest, RequestedOutput};

use crate::run::{charging::Inputs, client::Client};

/// A queued request.
pub(crate) struct Job {
    pub(crate) request: InferRequest,
    pub(crate) client: Client,
}

/// An unfinished run of a caller. A thread finishes it in the caller's instance.
pub(crate) enum Rest {
    /// A batch that the caller took but did not run.
    Batch { jobs: Vec<Job>, taken: Instant },
    /// A run that takes longer than its caller waits.
    Run { called: ModelCall, rest: RestOfRun },
}

/// A single request whose model has been called.
pub(crate) struct ModelCall {
    pub(crate) client: Client,
    pub(crate) wanted: Vec<RequestedOutput>,
    pub(crate) inputs: Inputs,
    /// Times at which the request left the queue and at which the model was called.
    pub(crate) taken: Instant,
    pub(crate) start: Instant,
}
