//! Maps errors to gRPC statuses.

use http::{HeaderMap, HeaderValue, Response, header::HeaderName};
use oip_types::{ErrorCode, ServiceError};
use tonic::{Code, Status};

/// The content type of all responses.
pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The delay in milliseconds after which clients should retry.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Converts an error to its status.
///
/// A request that can never fit in memory and one that does not fit now both get `RESOURCE_EXHAUSTED`; only
/// the latter gets a retry delay.
pub(crate) fn from_error(error: &ServiceError) -> Status {
    if error.code() == ErrorCode::Internal {
        tracing::error!(error = error.report(), "a request failed");
    }
    let mut status = Status::new(Code::from_i32(error.code().grpc_code()), error.message());
    if error.code() == ErrorCode::Overloaded
        && let Some(delay) = error.retry_delay()
    {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        status.metadata_mut().insert(RETRY_PUSHBACK, millis.into());
    }
    status
}

/// Creates the response to a call that failed before its message was read.
#[must_use]
pub fn error_response(error: &ServiceError) -> Response<tonic::body::Body> {
    from_error(error).into_http()
}

/// Encodes a status as trailers.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.code() == Code::Ok && status.message().is_empty() && status.metadata().is_empty() {
        trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
        return trailers;
    }
    // Encoding fails for a message that no header can hold; the status code is already set then.
    let _ = status.add_header(&mut trailers);
    trailers
}

/// Parses the call's timeout from the header `grpc-timeout`.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<std::time::Duration>, ServiceError> {
    let Some(value) = headers.get("grpc-timeout") else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(parse_timeout);
    let wrong =
        || ServiceError::invalid("grpc-timeout: expected up to eight digits and one of H, M, S, m, u, n");
    parsed.map(Some).ok_or_else(wrong)
}

fn parse_timeout(value: &str) -> Option<std::time::Duration> {
    use std::time::Duration;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Changes status codes of tonic's own errors to those of other gRPC servers.
///
/// tonic rejects messages that are too large with `OUT_OF_RANGE`, which means something else in gRPC. This
/// server never uses that code for its own errors.
pub(crate) fn harmonise<B>(response: &mut Response<B>) {
    let headers = response.headers_mut();
    if headers.get(GRPC_STATUS).is_some_and(|code| code == "11") {
        headers.insert(GRPC_STATUS, HeaderValue::from_static("8"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Parses valid and malformed timeouts.
    #[test]
    fn timeouts() {
        for (value, expected) in [
            ("1n", Some(Duration::from_nanos(1))),
            ("1m", Some(Duration::from_millis(1))),
            ("0S", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000S", None),
            ("abc", None),
            ("-1S", None),
            ("S", None),
            ("", None),
            ("1", None),
            ("1ä", None),
        ] {
            assert_eq!(parse_timeout(value), expected, "{value}");
        }
    }
}
