//! Cancels runs, and creates the errors for runs that ended early.

use std::sync::Arc;

use oip_model::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use onnx_run::{RunError, RunErrorKind};
use onnx_tensor::cancelling::Cancellation;

/// Adapts a request's cancel token to the operators' trait.
struct Token(CancelToken);

impl Cancellation for Token {
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Wraps a request's cancel token for the operators.
pub(crate) fn cancellation(token: &CancelToken) -> Arc<dyn Cancellation> {
    Arc::new(Token(token.clone()))
}

/// Returns the error for a run that ended early: the request was cancelled, or its deadline has passed.
pub(crate) fn ended(cancel: &CancelToken) -> ServiceError {
    match cancel.is_expired() {
        true => ServiceError::new(
            ErrorCode::DeadlineExceeded,
            "the deadline passed while the model ran",
        ),
        false => ServiceError::new(
            ErrorCode::Cancelled,
            "the request was cancelled while the model ran",
        ),
    }
}

/// Converts a run's error into the one that clients see.
pub(crate) fn failed(error: RunError, cancel: &CancelToken) -> ServiceError {
    let code = match error.kind() {
        RunErrorKind::Cancelled => return ended(cancel),
        RunErrorKind::InvalidInput => ErrorCode::InvalidArgument,
        RunErrorKind::NoMemory => ErrorCode::Overloaded,
        _ => ErrorCode::Internal,
    };
    let failed = ServiceError::new(code, error.to_string());
    match error.into_source() {
        Some(source) => failed.caused_by(source),
        None => failed,
    }
}
