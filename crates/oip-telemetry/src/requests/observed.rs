//! The outermost service: observes the head and body of each request and response.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderValue, Request, Response};
use http_body::Body;
use oip_service::route::Route;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    exchange::{CountedBody, Exchange},
    load_report::{self, LoadFormat},
    request_headers::Ids,
    traffic::Traffic,
    transport::Transport,
};

/// A service whose requests are observed; there is one per connection.
#[derive(Clone)]
pub struct ObservedService<S> {
    service: S,
    traffic: Arc<Traffic>,
    transport: Option<Transport>,
    peer: Option<SocketAddr>,
}

impl<S> ObservedService<S> {
    /// Creates the service of a connection. `transport` is `None` at an address that serves both transports.
    /// `peer` is the client's address, if it has one.
    pub fn new(
        service: S,
        traffic: Arc<Traffic>,
        transport: Option<Transport>,
        peer: Option<SocketAddr>,
    ) -> Self {
        Self {
            service,
            traffic,
            transport,
            peer,
        }
    }
}

impl<S, A, B> Service<Request<A>> for ObservedService<S>
where
    S: Service<Request<CountedBody<A>>, Response = Response<B>, Error = Infallible>,
    A: Body,
    B: Body,
{
    type Response = Response<CountedBody<B>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let transport = self.transport.unwrap_or_else(|| Transport::of(&request));
        match transport {
            Transport::Http => {
                self.traffic.aliases.apply(&mut request);
                Route::read_http(&mut request);
            }
            Transport::Grpc => Route::read_grpc(&mut request),
        }
        // Missing request ids are generated only for the access log.
        let is_logged = self.traffic.access_log.is_some();
        let ids = Ids::of_request(request.headers(), is_logged.then_some(&self.traffic.request_ids));
        let wants_load = LoadFormat::of_request(request.headers());
        let exchange = Exchange::begin(&self.traffic, transport, &request, self.peer, &ids);
        if let Some(notes) = exchange.as_ref().and_then(|exchange| exchange.notes()) {
            request.extensions_mut().insert(notes);
        }
        let request = request.map(|body| CountedBody::request(body, exchange.clone()));
        ResponseFuture {
            answer: self.service.call(request),
            exchange,
            ids,
            wants_load: wants_load.map(|format| (format, self.traffic.clone())),
        }
    }
}

pin_project! {
    /// The future of a response.
    pub struct ResponseFuture<F> {
        #[pin]
        answer: F,
        exchange: Option<Arc<Exchange>>,
        ids: Ids,
        wants_load: Option<(LoadFormat, Arc<Traffic>)>,
    }
}

impl<F, B> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body,
{
    type Output = Result<Response<CountedBody<B>>, Infallible>;

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
            && let Some(load) = &traffic.load
            && let Ok(value) = HeaderValue::try_from(load().write(*format))
        {
            headers.insert(load_report::REPORT, value);
        }
        Poll::Ready(Ok(response.map(|body| CountedBody::answer(body, exchange))))
    }
}
