use std::{sync::Arc, time::Instant};

use futures_channel::oneshot;
use oip_service::{CancelToken, Lease};
use oip_types::{ErrorCode, InferOutput, ServiceError};

use crate::run::several::Parts;

/// The result from a thread: the outputs of one request.
pub(crate) type Answer = Result<Vec<InferOutput>, ServiceError>;

/// The waiting client of a request.
pub(crate) struct Client {
    pub(crate) rows: u64,
    /// The rows by which its time is measured, as in the scheduler's `Ask`.
    pub(crate) measured_rows: Option<u64>,
    pub(crate) arrival: u64,
    pub(crate) received: Instant,
    pub(crate) queued: Instant,
    pub(crate) cancel: CancelToken,
    pub(crate) lease: Lease,
    /// The step of a pipeline that it is, for the request's notes.
    pub(crate) step: u32,
    pub(crate) answer: oneshot::Sender<Answer>,
    /// The channel for its answers if there may be several; `answer` then marks their end.
    pub(crate) parts: Option<Arc<Parts>>,
}

impl Client {
    /// Whether several answers were taken to the last one.
    pub(crate) fn has_last_answer(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.took_last())
    }
}

/// How a request is counted whose client is gone.
pub(crate) fn given_up(cancel: &CancelToken) -> ErrorCode {
    match cancel.is_expired() {
        true => ErrorCode::DeadlineExceeded,
        false => ErrorCode::Cancelled,
    }
}
