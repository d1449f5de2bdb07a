//! Maps gRPC statuses to errors.

use std::time::Duration;

use oip_types::ErrorCode;
use tonic::Code;

use super::transport::Record;
use crate::{ClientError, ErrorKind, Status};

/// Creates the error for a failed call: the transport failure in `record` if there is one, otherwise the
/// server's status, otherwise a decoding error.
pub(super) fn error(status: &tonic::Status, record: &Record, max_answer_bytes: usize) -> ClientError {
    if let Some(failure) = record.take_failure() {
        return failure;
    }
    if !record.has_status() {
        return unreadable(status, max_answer_bytes);
    }
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    let pushback = pushback.map(|value| value.to_str().ok().and_then(|value| value.parse().ok()));
    let seconds = status.metadata().get("retry-after");
    let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let delay = pushback.flatten().map(Duration::from_millis);
    let message = match status.message() {
        "" => "no reason given",
        message => message,
    };
    let number = Status::Grpc(status.code() as i32);
    ClientError::refused(code(status), number, message)
        .retry_after(delay.or(seconds.map(Duration::from_secs)))
        // A `grpc-retry-pushback-ms` that is not a number forbids further attempts.
        .finally(pushback == Some(None))
}

/// Creates the error for a complete response that could not be decoded.
fn unreadable(status: &tonic::Status, max_answer_bytes: usize) -> ClientError {
    if status.code() == Code::OutOfRange || is_bomb(status) {
        return ClientError::too_large(max_answer_bytes);
    }
    let message = format!("the response violates the protocol: {}", status.message());
    ClientError::new(ErrorKind::Protocol, message)
}

/// Returns whether decompression hit the limit, which tonic reports only in the message.
fn is_bomb(status: &tonic::Status) -> bool {
    status.code() == Code::ResourceExhausted || status.message().contains("failed to write whole buffer")
}

/// Maps a gRPC status code to the protocol's error code, for any server.
fn code(status: &tonic::Status) -> Option<ErrorCode> {
    // gRPC has one code for messages that are too large and for overloaded servers. The message distinguishes
    // them: gRPC libraries describe a message as "larger than" a limit or "too large".
    let is_too_large = status.message().contains("larger than") || status.message().contains("too large");
    Some(match status.code() {
        // OVMS returns `FailedPrecondition` for malformed requests.
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => ErrorCode::InvalidArgument,
        Code::Unauthenticated => ErrorCode::Unauthenticated,
        Code::PermissionDenied => ErrorCode::PermissionDenied,
        Code::NotFound => ErrorCode::NotFound,
        Code::ResourceExhausted if is_too_large => ErrorCode::TooLarge,
        Code::ResourceExhausted => ErrorCode::Overloaded,
        Code::Unimplemented => ErrorCode::Unimplemented,
        Code::Unavailable => ErrorCode::Unavailable,
        Code::DeadlineExceeded => ErrorCode::DeadlineExceeded,
        Code::Cancelled => ErrorCode::Cancelled,
        Code::Internal | Code::Unknown | Code::DataLoss => ErrorCode::Internal,
        _ => return None,
    })
}
