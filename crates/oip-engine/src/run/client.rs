//! The client's side of a queued request: where its responses go, and its times, lease and cancellation.

use std::{sync::Arc, time::Instant};

use futures_channel::oneshot;
use oip_model::CancelToken;
use oip_resources::Lease;

use crate::{infer_result::InferResult, run::several::Parts};

/// The client that waits for the response to a request.
pub(crate) struct Client {
    pub(crate) rows: u64,
    /// The row count that determines the run time, as in the scheduler's `Ask`.
    pub(crate) measured_rows: Option<u64>,
    pub(crate) arrival: u64,
    pub(crate) received: Instant,
    pub(crate) queued: Instant,
    pub(crate) cancel: CancelToken,
    pub(crate) lease: Lease,
    /// The index of the pipeline step that the request runs, for the request's `RequestNotes`.
    pub(crate) step: u32,
    pub(crate) answer: oneshot::Sender<InferResult>,
    /// Channel for several responses; `answer` then signals the end of the responses.
    pub(crate) parts: Option<Arc<Parts>>,
}

impl Client {
    /// Returns whether the client has received its last response.
    pub(crate) fn has_last_answer(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.took_last())
    }
}
