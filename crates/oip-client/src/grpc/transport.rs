//! The HTTP/2 layer under the generated client. It records transport failures, which a gRPC status cannot
//! carry.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use oip_grpc::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use oip_types::ErrorCode;
use parking_lot::Mutex;
use tower_service::Service;

use crate::{
    BoxFuture, ClientError, ErrorKind, Status, connect, connector::Connector, endpoint::Endpoint,
    settings::Settings,
};

const HINT: &str = "if this is an HTTP port, use http:// instead of grpc://";

/// The information about one call that a gRPC status cannot carry.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The failure of the transport, if any.
    failure: Mutex<Option<ClientError>>,
    /// Whether the server sent a status other than OK.
    has_status: AtomicBool,
}

impl Record {
    pub(super) fn take_failure(&self) -> Option<ClientError> {
        self.failure.lock().take()
    }

    pub(super) fn has_status(&self) -> bool {
        self.has_status.load(Ordering::Relaxed)
    }

    fn fail(&self, error: ClientError) -> RecordedError {
        *self.failure.lock() = Some(error);
        RecordedError
    }

    /// Records the status found in headers or trailers; returns false if they contain none.
    fn note(&self, headers: &HeaderMap) -> bool {
        let status = headers.get("grpc-status");
        if status.is_some_and(|status| status != "0") {
            self.has_status.store(true, Ordering::Relaxed);
        }
        status.is_some()
    }
}

/// The error of a call whose failure is in its [`Record`].
#[derive(Debug)]
pub(super) struct RecordedError;

impl fmt::Display for RecordedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the transport failed")
    }
}

impl Error for RecordedError {}

/// The generated client over this crate's transport.
pub(super) type Client = GrpcInferenceServiceClient<Http2Client>;

/// The HTTP/2 connections of a client. They record transport failures.
#[derive(Clone, Debug)]
pub(super) enum Http2Client {
    /// A pool of connections.
    Pool(Box<legacy::Client<Connector, tonic::body::Body>>),
    /// A single connection, for requests through its shared memory region.
    #[cfg(target_os = "linux")]
    One(hyper::client::conn::http2::SendRequest<tonic::body::Body>),
}

/// HTTP/2 flow control window; the default limits large tensors to 64 KiB per round trip.
const WINDOW: u32 = 16 << 20;

impl Http2Client {
    pub(super) fn new(endpoint: &Endpoint, settings: &Settings) -> Result<Self, ClientError> {
        let (mut builder, connector) = connect::pool(endpoint, settings, b"h2")?;
        let client = builder
            .http2_only(true)
            .http2_initial_stream_window_size(WINDOW)
            .http2_initial_connection_window_size(WINDOW)
            .http2_max_frame_size(1 << 20)
            .build(connector);
        Ok(Self::Pool(Box::new(client)))
    }

    /// Returns whether the connection is closed; always false for a pool.
    #[cfg(target_os = "linux")]
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Pool(_) => false,
            Self::One(connection) => connection.is_closed(),
        }
    }
}

impl Service<Request<tonic::body::Body>> for Http2Client {
    type Response = Response<WatchedBody>;
    type Error = RecordedError;
    type Future = BoxFuture<'static, Result<Self::Response, RecordedError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RecordedError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<tonic::body::Body>) -> Self::Future {
        let record: Arc<Record> = request.extensions_mut().remove().unwrap_or_default();
        let answer: BoxFuture<'static, _> = match self {
            Self::Pool(client) => {
                let answer = client.request(request);
                Box::pin(async { answer.await.map_err(|error| connect::failed(error, HINT)) })
            }
            #[cfg(target_os = "linux")]
            Self::One(connection) => {
                let answer = connection.send_request(request);
                Box::pin(async { answer.await.map_err(|error| connect::failed(error, HINT)) })
            }
        };
        Box::pin(async move {
            let response = match answer.await {
                Ok(response) => response,
                Err(error) => return Err(record.fail(error)),
            };
            if let Some(error) = foreign(&response) {
                return Err(record.fail(error));
            }
            // A status in the headers means that there is no body.
            let is_over = record.note(response.headers());
            Ok(response.map(|body| WatchedBody {
                body,
                record,
                is_over,
            }))
        })
    }
}

/// Returns an error if the response is not gRPC: proxies send other responses when the server is down or
/// busy.
fn foreign(response: &Response<Incoming>) -> Option<ClientError> {
    let content_type = response
        .headers()
        .get(CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes)
        .unwrap_or_default();
    if content_type.starts_with(b"application/grpc") {
        return None;
    }
    let status = response.status();
    let found = match content_type {
        [] => "a response without a type".to_owned(),
        found => tensor_core::QuotedName(&String::from_utf8_lossy(found)).to_string(),
    };
    let message = format!("expected application/grpc, found {found} with HTTP {status}");
    Some(match status.as_u16() {
        code @ (429 | 502 | 503 | 504) => {
            ClientError::refused(Some(ErrorCode::Unavailable), Status::Http(code), message)
        }
        _ => ClientError::new(
            ErrorKind::Protocol,
            format!("{message}; is this the address of a gRPC port?"),
        ),
    })
}

/// A response body that must end with a status.
pub(super) struct WatchedBody {
    body: Incoming,
    record: Arc<Record>,
    /// Whether the status arrived.
    is_over: bool,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = RecordedError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RecordedError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                return Poll::Ready(Some(Err(self.record.fail(connect::broken_off(error, "")))));
            }
            None if self.is_over => return Poll::Ready(None),
            None => {
                self.is_over = true;
                let message = "the response is incomplete: it ended without a status";
                let error = ClientError::new(ErrorKind::Broken, message);
                return Poll::Ready(Some(Err(self.record.fail(error))));
            }
        };
        if let Some(trailers) = frame.trailers_ref() {
            self.is_over |= self.record.note(trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}
