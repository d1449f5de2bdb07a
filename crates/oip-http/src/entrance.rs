//! The layer in front of the router, for every request: its head is looked at, and a panic further on becomes an answer.
//!
//! One service does it all: what axum makes of a function is put into boxes of its own for each request, and each of several would copy those
//! below it.

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
use oip_service::{CatchPanic, catch_panic};
use oip_types::{ServiceError, rest::error_body};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{HttpConfig, answer, browsers, head, leased::leased_or_refused};

/// Refuses heads that are too large or have not exactly one `Host`, and what a web page may not ask for. A service that panics is answered for
/// with status 500, and the connection stays open.
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
    type Service = Guarded<S>;

    fn layer(&self, service: S) -> Guarded<S> {
        Guarded {
            service,
            config: self.config.clone(),
        }
    }
}

/// A service behind the entrance.
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    service: S,
    config: Arc<HttpConfig>,
}

/// The answer to a request that goes no further.
pub(crate) fn refusal<B>(request: &mut Request<B>, config: &HttpConfig) -> Option<Response> {
    let refuse = |status, message: String| {
        let error = ServiceError::invalid(message);
        answer::json(status, error_body(&error))
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
        .map(|failure| answer::error(&failure))
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Entered<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Entered<S::Future> {
        match refusal(&mut request, &self.config) {
            Some(response) => Entered::refused(response),
            None => Entered::leasing(self.service.call(request), self.config.clone()),
        }
    }
}

pin_project! {
    /// An answer in the making.
    #[project = EnteredProjection]
    pub enum Entered<F> {
        Refused { response: Option<Response> },
        Admitted {
            #[pin]
            answer: CatchPanic<F>,
            // Charges the response, if it does not do that itself.
            lease_by: Option<Arc<HttpConfig>>,
        },
    }
}

impl<F: Future> Entered<F> {
    pub(crate) fn refused(response: Response) -> Self {
        Self::Refused {
            response: Some(response),
        }
    }

    /// An answer that charges its bytes itself.
    pub(crate) fn admitted(answer: F) -> Self {
        Self::Admitted {
            answer: catch_panic(answer),
            lease_by: None,
        }
    }

    /// An answer that is charged when it is there.
    fn leasing(answer: F, config: Arc<HttpConfig>) -> Self {
        Self::Admitted {
            answer: catch_panic(answer),
            lease_by: Some(config),
        }
    }
}

impl<F> Future for Entered<F>
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
                    ready!(answer.poll(cx)).unwrap_or_else(|panicked| Ok(answer::error(&panicked)));
                Poll::Ready(Ok(match lease_by {
                    Some(config) => leased_or_refused(response, config),
                    None => response,
                }))
            }
        }
    }
}
