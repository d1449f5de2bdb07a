//! HTTP/2 under the generated client, watched: what the transport knows of a failure would else be lost in a status.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
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
use tower_service::Service;

use crate::{
    BoxFuture, ClientError, ErrorKind, Status, connect, connector::Connector, endpoint::Endpoint,
    settings::Settings,
};

const HINT: &str = "if this is an HTTP port, it wants http:// for grpc://";

/// The outcome of one call, beside its status.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Why the transport failed, if it did.
    failure: Mutex<Option<ClientError>>,
    /// Whether the server sent a status other than OK.
    has_status: AtomicBool,
}

impl Record {
    pub(super) fn take_failure(&self) -> Option<ClientError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn has_status(&self) -> bool {
        self.has_status.load(Ordering::Relaxed)
    }

    fn fail(&self, error: ClientError) -> Recorded {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Recorded
    }

    /// Notes the status among headers or trailers; false when there is none.
    fn note(&self, headers: &HeaderMap) -> bool {
        let status = headers.get("grpc-status");
        if status.is_some_and(|status| status != "0") {
            self.has_status.store(true, Ordering::Relaxed);
        }
        status.is_some()
    }
}

/// The failure is in the call's [`Record`].
#[derive(Debug)]
pub(super) struct Recorded;

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the transport failed")
    }
}

impl Error for Recorded {}

/// The generated client over this crate's transport.
pub(super) type Client = GrpcInferenceServiceClient<Watched>;

/// HTTP/2 connections whose failures are recorded.
#[derive(Clone, Debug)]
pub(super) enum Watched {
    /// A pool of them.
    Pool(Box<legacy::Client<Connector, tonic::body::Body>>),
    /// One.
    #[cfg(target_os = "linux")]
    One(hyper::client::conn::http2::SendRequest<tonic::body::Body>),
}

/// Large tensors are else throttled to a window for each round trip.
const WINDOW: u32 = 16 << 20;

impl Watched {
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

    /// Returns whether it is over: a pool never is.
    #[cfg(target_os = "linux")]
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Pool(_) => false,
            Self::One(connection) => connection.is_closed(),
        }
    }
}

impl Service<Request<tonic::body::Body>> for Watched {
    type Response = Response<WatchedBody>;
    type Error = Recorded;
    type Future = BoxFuture<'static, Result<Self::Response, Recorded>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Recorded>> {
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
            // A status among the headers is all there is.
            let is_over = record.note(response.headers());
            Ok(response.map(|body| WatchedBody {
                body,
                record,
                is_over,
            }))
        })
    }
}

/// Tells answers that are no gRPC. Proxies answer so when the server behind them is gone or busy.
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
        [] => "an answer without a type".to_owned(),
        found => tensor_core::Quoted(&String::from_utf8_lossy(found)).to_string(),
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

/// An answer's body that knows how it must end: with a status.
pub(super) struct WatchedBody {
    body: Incoming,
    record: Arc<Record>,
    /// Whether the status was there.
    is_over: bool,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = Recorded;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Recorded>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                return Poll::Ready(Some(Err(self.record.fail(connect::broken_off(error, "")))));
            }
            None if self.is_over => return Poll::Ready(None),
            None => {
                self.is_over = true;
                let message = "the answer is incomplete: it ended without a status";
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
