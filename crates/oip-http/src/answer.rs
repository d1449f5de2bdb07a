use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY},
    },
    response::Response,
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use oip_service::Charge;
use oip_types::{
    ErrorCode, ServiceError,
    rest::{EncodedBody, HEADER_LENGTH, error_body},
};

use crate::content_encoding::ContentEncoding;

/// The exact type that KServe's client looks for: no charset.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// An answer with a JSON body.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// The answer to a request that failed: `{"error": ...}`, whatever went wrong.
pub(crate) fn error(error: &ServiceError) -> Response {
    if error.code() == ErrorCode::Internal {
        tracing::error!(error = error.report(), "a request failed");
    }
    let mut response = json(status(error.code()), error_body(error));
    retry_later(&mut response, error);
    if error.code() == ErrorCode::UnsupportedEncoding {
        response
            .headers_mut()
            .insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
    }
    response
}

/// Says when to try again, if that may help.
pub(crate) fn retry_later(response: &mut Response, error: &ServiceError) {
    if let Some(delay) = error.retry_delay() {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(delay.as_secs().max(1)));
    }
}

pub(crate) fn status(code: ErrorCode) -> StatusCode {
    // The table has no number that is no status.
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The answer to an inference: JSON, or JSON and then each binary tensor right from where it is.
pub(crate) fn inference(body: EncodedBody, permits: Vec<Charge>) -> Response {
    let header_length = body.header_length();
    in_parts(body.into_parts().collect(), header_length, permits)
}

/// The compressed body of an answer to an inference.
pub(crate) struct Compressed {
    pub(crate) bytes: Bytes,
    /// Bytes of JSON before compression, when binary tensors follow.
    pub(crate) header_length: Option<usize>,
    pub(crate) encoding: ContentEncoding,
}

/// The same answer, compressed.
pub(crate) fn compressed(body: Compressed, permits: Vec<Charge>) -> Response {
    let mut response = in_parts([body.bytes].into(), body.header_length, permits);
    let encoding = HeaderValue::from_static(body.encoding.name());
    response.headers_mut().insert(CONTENT_ENCODING, encoding);
    response
}

fn in_parts(parts: VecDeque<Bytes>, header_length: Option<usize>, permits: Vec<Charge>) -> Response {
    let body = Parts {
        parts,
        _permits: permits,
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    match header_length {
        None => headers.insert(CONTENT_TYPE, JSON),
        Some(length) => {
            headers.insert(HeaderName::from_static(HEADER_LENGTH), HeaderValue::from(length));
            headers.insert(CONTENT_TYPE, BINARY)
        }
    };
    response
}

/// A body of known length in several pieces that are sent one by one, without being joined.
struct Parts {
    parts: VecDeque<Bytes>,
    /// Tensors of the request may be in the answer, so its bytes count until that is sent.
    _permits: Vec<Charge>,
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.parts.iter().map(|part| part.len() as u64).sum())
    }
}
