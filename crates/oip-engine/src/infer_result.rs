//! The result of a request to a model or a pipeline.

use oip_model::CancelToken;
use oip_types::{ErrorCode, InferOutput, ServiceError};

/// The outputs of one request, or its error.
pub(crate) type InferResult = Result<Vec<InferOutput>, ServiceError>;

/// Returns the error code for a request whose client has disconnected or whose deadline has passed.
pub(crate) fn given_up(cancel: &CancelToken) -> ErrorCode {
    match cancel.is_expired() {
        true => ErrorCode::DeadlineExceeded,
        false => ErrorCode::Cancelled,
    }
}
