//! The outermost layer for every request: reads its route, checks the head, and turns panics into responses.
//!
//! The layer is a single service, because axum's function middleware allocates boxes per request, and each of
//! several layers would contain a copy of the inner ones.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
    response::Response,
};
use oip_service::{CatchPanic, catch_panic, route::Route};
use oip_types::ServiceError;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{HttpConfig, browsers, head, leased::leased_or_refused, response, text::errors};

/// Rejects requests whose head is too large or does not have exactly one `Host`, and requests that web pages
/// may not send. If the service panics, responds with 500 and keeps the connection open.
#[derive(Clone)]
pub(crate) struct Entrance {
    config: Arc<HttpConfig>,
}

impl Entrance {
    pub(crate) fn new(config: Arc<HttpConfig>) -> Self {
        Self { config }
    }
}

impl<S> Layer<S> for Entrance {
    type Service = Guard<S>;

    fn layer(&self, service: S) -> Guard<S> {
        Guard {
            service,
            config: self.config.clone(),
        }
    }
}

/// The service that [`Entrance`] creates around another service.
#[derive(Clone)]
pub(crate) struct Guard<S> {
    service: S,
    config: Arc<HttpConfig>,
}

/// Returns the response to a rejected request.
pub(crate) fn refusal<B>(request: &mut Request<B>, config: &HttpConfig) -> Option<Response> {
    let action = Route::of(request).action();
    let refuse = |status, message: String| {
        let error = ServiceError::invalid(message);
        response::json(status, errors::body(&error, action))
    };
    if let Some((status, message)) = head::find_fault(request, config) {
        return Some(refuse(status, message));
    }
    if let Some(message) = browsers::find_fault(request, &config.allowed_hosts) {
        tracing::debug!(message, "refused a request of a web page");
        return Some(refuse(StatusCode::FORBIDDEN, message));
    }
    head::charge(request, config)
        .err()
        .map(|failure| response::error_to(&failure, action))
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = EntranceFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> EntranceFuture<S::Future> {
        Route::read_http(&mut request);
        match refusal(&mut request, &self.config) {
            Some(response) => EntranceFuture::refused(response),
            None => EntranceFuture::leasing(self.service.call(request), self.config.clone()),
        }
    }
}

pin_project! {
    /// The future of the response that `Guard` returns.
    #[project = EnteredProjection]
    pub enum EntranceFuture<F> {
        Refused { response: Option<Response> },
        Admitted {
            #[pin]
            answer: CatchPanic<F>,
            // The configuration with the memory budget to charge the response to; `None` if the handler
            // charges it.
            lease_by: Option<Arc<HttpConfig>>,
        },
    }
}

impl<F: Future> EntranceFuture<F> {
    pub(crate) fn refused(response: Response) -> Self {
        Self::Refused {
            response: Some(response),
        }
    }

    /// Creates a future for a response that its handler charges to a budget.
    pub(crate) fn admitted(answer: F) -> Self {
        Self::Admitted {
            answer: catch_panic(answer),
            lease_by: None,
        }
    }

    /// Creates a future that charges the response to the budget in `config`.
    fn leasing(answer: F, config: Arc<HttpConfig>) -> Self {
        Self::Admitted {
            answer: catch_panic(answer),
            lease_by: Some(config),
        }
    }
}

impl<F> Future for EntranceFuture<F>
where
    F: Future<Output = Result<Response, Infallible>>,
{
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            EnteredProjection::Refused { response } => response
                .take()
                .map_or(Poll::Pending, |response| Poll::Ready(Ok(response))),
            EnteredProjection::Admitted { answer, lease_by } => {
                let Ok(response) =
                    ready!(answer.poll(cx)).unwrap_or_else(|panicked| Ok(response::error(&panicked)));
                Poll::Ready(Ok(match lease_by {
                    Some(config) => leased_or_refused(response, config),
                    None => response,
                }))
            }
        }
    }
}
