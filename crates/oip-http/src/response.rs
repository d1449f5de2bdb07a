//! Builds HTTP responses.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::{
        HeaderValue, StatusCode,
        header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY},
    },
    response::Response,
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use oip_service::route::Action;
use oip_types::{ErrorCode, ServiceError, rest::EncodedPieces};

use crate::{
    content_encoding::{ContentEncoding, name},
    head::HEADER_LENGTH,
    text::errors,
};

/// KServe's client compares the content type with exactly this string, so there is no charset.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Returns a response with a JSON body.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// Creates the response to a failed request: `{"error": ...}`.
pub fn error(error: &ServiceError) -> Response {
    error_to(error, Action::Unknown)
}

/// Creates the response to a failed request for an action, in the form that clients of the action's API read:
/// for `OpenAI`'s API an object `error`, otherwise a string, for some APIs with further members.
pub fn error_to(error: &ServiceError, action: Action) -> Response {
    if error.code() == ErrorCode::Internal {
        tracing::error!(error = error.report(), "a request failed");
    }
    let mut response = json(status(error.code()), errors::body(error, action));
    retry_later(&mut response, error);
    if error.code() == ErrorCode::UnsupportedEncoding {
        response
            .headers_mut()
            .insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
    }
    response
}

/// Converts a result to its response.
pub(crate) fn respond(result: Result<Response, ServiceError>) -> Response {
    respond_to(Action::Unknown, result)
}

/// Converts the result of an action to its response.
pub(crate) fn respond_to(action: Action, result: Result<Response, ServiceError>) -> Response {
    result.unwrap_or_else(|failure| error_to(&failure, action))
}

/// Sets `Retry-After`, if a retry may succeed.
pub(crate) fn retry_later(response: &mut Response, error: &ServiceError) {
    if let Some(delay) = error.retry_delay() {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(delay.as_secs().max(1)));
    }
}

pub(crate) fn status(code: ErrorCode) -> StatusCode {
    // The table contains only valid statuses.
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The encoded body of an inference response, in parts.
pub(crate) struct EncodedResponse {
    pub(crate) parts: Vec<Bytes>,
    /// Length of the JSON before compression, when binary tensors follow.
    pub(crate) header_length: Option<usize>,
    pub(crate) encoding: Option<ContentEncoding>,
}

impl EncodedResponse {
    /// Creates an uncompressed body: JSON, followed by the binary tensors, which are not copied.
    pub(crate) fn plain(body: EncodedPieces) -> Self {
        Self {
            header_length: body.header_length(),
            parts: body.into_parts().collect(),
            encoding: None,
        }
    }
}

/// Creates the response to an inference request.
pub(crate) fn inference(encoded: EncodedResponse) -> Response {
    let mut response = Response::new(Body::new(Parts(encoded.parts.into())));
    // Reserves capacity for the headers added here and by outer layers.
    let headers = response.headers_mut();
    headers.reserve(8);
    headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    if let Some(encoding) = encoded.encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name(encoding)));
    }
    match encoded.header_length {
        None => headers.insert(CONTENT_TYPE, JSON),
        Some(length) => {
            headers.insert(HEADER_LENGTH, HeaderValue::from(length));
            headers.insert(CONTENT_TYPE, BINARY)
        }
    };
    response
}

/// A body of known length in several buffers, which are sent without being copied into one. Each buffer
/// counts toward the request's budget until it is sent.
struct Parts(VecDeque<Bytes>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
