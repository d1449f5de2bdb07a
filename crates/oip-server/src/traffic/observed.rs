//! The tower service that observes heads and bodies of requests and responses.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::http::{HeaderValue, Request, Response, Version, header::CONTENT_TYPE};
use http_body::Body;
use oip_listen::Peer;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    exchange::{Counted, Exchange},
    ids::Ids,
    load_report::{self, LoadFormat},
    shared::Traffic,
    transport::Transport,
};
use crate::addresses::Speaks;

/// Observes the requests of one connection.
#[derive(Clone)]
pub(crate) struct Observed<S> {
    service: S,
    traffic: Arc<Traffic>,
    speaks: Speaks,
    peer: Option<SocketAddr>,
}

impl<S> Observed<S> {
    pub(crate) fn new(service: S, traffic: Arc<Traffic>, speaks: Speaks, peer: &Peer) -> Self {
        Self {
            service,
            traffic,
            speaks,
            peer: peer.address,
        }
    }
}

impl<S, A, B> Service<Request<A>> for Observed<S>
where
    S: Service<Request<Counted<A>>, Response = Response<B>, Error = Infallible>,
    A: Body,
    B: Body,
{
    type Response = Response<Counted<B>>;
    type Error = Infallible;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let transport = match self.speaks {
            Speaks::Grpc => Transport::Grpc,
            Speaks::Both if is_grpc(&request) => Transport::Grpc,
            Speaks::Http | Speaks::Both => Transport::Http,
        };
        if transport == Transport::Http {
            self.traffic.aliases.apply(&mut request);
        }
        let ids = Ids::of_request(request.headers(), &self.traffic);
        let wants_load = LoadFormat::of_request(request.headers());
        let exchange = Exchange::begin(&self.traffic, transport, &request, self.peer, &ids);
        if let Some(notes) = exchange.as_ref().and_then(|exchange| exchange.notes()) {
            request.extensions_mut().insert(notes);
        }
        let request = request.map(|body| Counted::request(body, exchange.clone()));
        Answering {
            answer: self.service.call(request),
            exchange,
            ids,
            wants_load: wants_load.map(|format| (format, self.traffic.clone())),
        }
    }
}

/// Returns whether a request is gRPC: HTTP/2 with gRPC's content type.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    request.version() == Version::HTTP_2
        && content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

pin_project! {
    /// The pending response.
    pub(crate) struct Answering<F> {
        #[pin]
        answer: F,
        exchange: Option<Arc<Exchange>>,
        ids: Ids,
        wants_load: Option<(LoadFormat, Arc<Traffic>)>,
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body,
{
    type Output = Result<Response<Counted<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.answer.poll(cx));
        let exchange = this.exchange.take();
        if let Some(exchange) = &exchange {
            exchange.answered(&response);
        }
        let headers = response.headers_mut();
        this.ids.write(headers);
        if let Some((format, traffic)) = this.wants_load
            && let Ok(value) = HeaderValue::try_from((traffic.load)().write(*format))
        {
            headers.insert(load_report::REPORT, value);
        }
        Poll::Ready(Ok(response.map(|body| Counted::answer(body, exchange))))
    }
}
