//! The REST API as one service, in which inference bypasses the router.
//!
//! A router costs a dozen allocations per request and additional cold code, and inference is nearly all
//! traffic.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::HttpBody,
    http::{Method, Request},
    response::Response,
    routing::future::RouteFuture,
};
use bytes::Bytes;
use oip_service::{
    InferenceService,
    route::{Action, Route},
};
use pin_project_lite::pin_project;
use tower_service::Service;

#[cfg(unix)]
use crate::connection_memory;
use crate::{
    HttpConfig,
    app::App,
    entrance::{EntranceFuture, refusal},
    infer::infer_ready,
    leased::leased_or_refused,
    response,
    routes::routed,
};

/// Creates the REST API of a service as a tower service. It behaves like [`router`](crate::router), with less
/// overhead for inference.
#[must_use]
pub fn service(service: Arc<dyn InferenceService>, config: HttpConfig) -> HttpService {
    service_with(service, config, Router::new())
}

/// Creates the REST API with the additional routes `more`. Checks of heads, unknown paths and wrong methods
/// also apply to them.
///
/// A fallback of `more` is replaced.
///
/// # Panics
/// If `more` has a path of the protocol.
#[must_use]
pub fn service_with(service: Arc<dyn InferenceService>, config: HttpConfig, more: Router) -> HttpService {
    let app = App::new(service, config);
    HttpService {
        router: routed(&app, more),
        app,
    }
}

/// A tower service that handles HTTP requests; created by [`service`].
#[derive(Clone)]
pub struct HttpService {
    app: App,
    /// Handles all requests except inference.
    router: Router,
}

impl<B> Service<Request<B>> for HttpService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = HttpFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> HttpFuture {
        Route::read_http(&mut request);
        let action = Route::of(&request).action();
        let is_direct = action == Action::Infer || (cfg!(unix) && action == Action::ConnectionMemoryRegister);
        if !is_direct || *request.method() != Method::POST {
            let answer = self.router.call(request);
            return HttpFuture::Routed { answer };
        }
        let answer = match refusal(&mut request, &self.app.config) {
            Some(response) => EntranceFuture::refused(response),
            None => EntranceFuture::admitted(answer(self.app.clone(), request)),
        };
        HttpFuture::Inference { answer }
    }
}

/// Handles a request that bypasses the router.
fn answer<B>(app: App, mut request: Request<B>) -> Answering
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    Box::pin(async move {
        let route = Route::take(&mut request);
        #[cfg(unix)]
        if route.action() == Action::ConnectionMemoryRegister {
            return Ok(connection_memory::register(&app.config, &request));
        }
        Ok(match infer_ready(&app, &route, request).await {
            Ok(response) => response,
            Err(failure) => leased_or_refused(response::error(&failure), &app.config),
        })
    })
}

type Answering = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

pin_project! {
    /// The response future of an [`HttpService`].
    #[project = HttpFutureProjection]
    pub enum HttpFuture {
        #[doc(hidden)]
        Inference {
            #[pin]
            answer: EntranceFuture<Answering>,
        },
        #[doc(hidden)]
        Routed {
            #[pin]
            answer: RouteFuture<Infallible>,
        },
    }
}

impl Future for HttpFuture {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            HttpFutureProjection::Inference { answer } => answer.poll(cx),
            HttpFutureProjection::Routed { answer } => answer.poll(cx),
        }
    }
}
