//! A request and its response, from the first byte of the request head to the last byte of the response.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use oip_resources::RequestNotes;
use oip_service::route::Route;
use pin_project_lite::pin_project;

use super::{
    finished::{Facts, FinishedExchange},
    request_headers::Ids,
    spans::TraceContext,
    traffic::Traffic,
    transport::Transport,
};

/// A request and its response. They are counted and logged when the last reference is dropped.
pub(super) struct Exchange {
    traffic: Arc<Traffic>,
    transport: Transport,
    route: &'static str,
    is_inference: bool,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// The HTTP status or gRPC code of the response.
    code: AtomicU32,
    /// Whether the whole response was passed to the connection, so that the client can have received it.
    is_whole: AtomicBool,
    traced: Option<TraceContext>,
    /// Facts for the access log and traces.
    facts: Option<Box<Facts>>,
}

/// The code while there is no response yet.
const UNKNOWN: u32 = u32::MAX;

/// Codes for a client that disconnected before its response: nginx's 499, and gRPC's CANCELLED.
const GONE_HTTP: u16 = 499;
const GONE_GRPC: u16 = 1;

impl Exchange {
    /// Starts an exchange when a request head arrives. Returns `None` if neither metrics, log nor traces use
    /// it.
    pub(super) fn begin<B>(
        traffic: &Arc<Traffic>,
        transport: Transport,
        request: &Request<B>,
        peer: Option<SocketAddr>,
        ids: &Ids,
    ) -> Option<Arc<Self>> {
        if traffic.totals.is_none() && traffic.access_log.is_none() && traffic.traces.is_none() {
            return None;
        }
        let route = Route::of(request);
        let is_inference = route.action().is_inference();
        if let Some(totals) = traffic.totals.as_ref().filter(|_| is_inference) {
            totals.begin(transport);
        }
        let traces = traffic.traces.as_ref().filter(|_| is_inference);
        let traced = traces.and_then(|traces| traces.decide(ids.parent()));
        let is_told = traffic.access_log.is_some() || traced.is_some();
        let facts = is_told.then(|| {
            let trace = traced.as_ref().map(TraceContext::id);
            Box::new(Facts::of(request, peer, ids, trace))
        });
        Some(Arc::new(Self {
            traffic: traffic.clone(),
            transport,
            route: route.name(),
            is_inference,
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            code: AtomicU32::new(UNKNOWN),
            // Responses to HEAD have no body.
            is_whole: AtomicBool::new(request.method() == Method::HEAD),
            traced,
            facts,
        }))
    }

    /// Returns the notes on the request's processing, for the access log and traces.
    pub(super) fn notes(&self) -> Option<Arc<RequestNotes>> {
        Some(self.facts.as_ref()?.notes.clone())
    }

    /// Records what the head of the response contains: the status, and whether a body follows.
    pub(super) fn answered<B: Body>(&self, response: &Response<B>) {
        if response.body().is_end_stream() {
            self.is_whole.store(true, Relaxed);
        }
        match self.transport {
            Transport::Http => self.set_code(response.status().as_u16()),
            // An error that is not gRPC has an HTTP status. A gRPC response without a body has its status in
            // the headers.
            Transport::Grpc if response.status() != StatusCode::OK => {
                self.set_code(response.status().as_u16());
            }
            Transport::Grpc => self.find_code(response.headers()),
        }
    }

    fn set_code(&self, code: u16) {
        self.code.store(code.into(), Relaxed);
    }

    fn find_code(&self, headers: &HeaderMap) {
        let code = headers.get("grpc-status").and_then(|code| code.to_str().ok());
        if let Some(code) = code.and_then(|code| code.parse().ok()) {
            self.set_code(code);
        }
    }

    /// Returns the code, and whether the response was complete.
    fn outcome(&self) -> (u16, bool) {
        let known = u16::try_from(self.code.load(Relaxed)).ok();
        match (self.transport, known) {
            (Transport::Http, Some(status)) if self.is_whole.load(Relaxed) => (status, status >= 400),
            (Transport::Http, _) => (GONE_HTTP, true),
            (Transport::Grpc, Some(code)) => (code, code != 0),
            (Transport::Grpc, None) => (GONE_GRPC, true),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let (code, is_failure) = self.outcome();
        let (bytes_in, bytes_out) = (self.bytes_in.load(Relaxed), self.bytes_out.load(Relaxed));
        if let Some(totals) = &self.traffic.totals {
            if self.is_inference {
                totals.end(self.transport, bytes_in, bytes_out);
            }
            if is_failure {
                totals.failed(self.transport, self.route, code);
            }
        }
        let Some(facts) = &self.facts else { return };
        let finished = FinishedExchange {
            transport: self.transport,
            route: self.route,
            code,
            bytes_in,
            bytes_out,
            facts,
        };
        if let (Some(traces), Some(traced)) = (&self.traffic.traces, &self.traced) {
            traces.export(traced, &finished);
        }
        if let Some(log) = &self.traffic.access_log {
            log.write(&finished);
        }
    }
}

pin_project! {
    /// A body that counts its bytes.
    pub struct CountedBody<B> {
        #[pin]
        body: B,
        exchange: Option<Arc<Exchange>>,
        is_answer: bool,
    }
}

impl<B> CountedBody<B> {
    /// Wraps a request body.
    pub(super) fn request(body: B, exchange: Option<Arc<Exchange>>) -> Self {
        Self {
            body,
            exchange,
            is_answer: false,
        }
    }

    /// Wraps a response body.
    pub(super) fn answer(body: B, exchange: Option<Arc<Exchange>>) -> Self {
        Self {
            body,
            exchange,
            is_answer: true,
        }
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if let Some(exchange) = this.exchange {
            let bytes = if *this.is_answer {
                &exchange.bytes_out
            } else {
                &exchange.bytes_in
            };
            match &frame {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        bytes.fetch_add(data.remaining() as u64, Relaxed);
                    } else if let Some(trailers) = frame.trailers_ref().filter(|_| *this.is_answer) {
                        exchange.find_code(trailers);
                    }
                }
                Some(Err(_)) => return Poll::Ready(frame),
                None => {}
            }
            if *this.is_answer && (frame.is_none() || this.body.is_end_stream()) {
                exchange.is_whole.store(true, Relaxed);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
