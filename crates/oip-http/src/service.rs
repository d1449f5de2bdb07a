//! The REST API as one service, in which inference bypasses the router.
//!
//! A router costs a dozen allocations per request and additional cold code. Inference is nearly all traffic,
//! and its path is recognised cheaply.

use std::{
    convert::Infallible,
    error::Error,
    future::ready,
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
use oip_service::{Grant, InferenceService};
use oip_types::ModelRef;
use pin_project_lite::pin_project;
use tower_service::Service;

#[cfg(unix)]
use crate::connection_memory;
use crate::{
    HttpConfig, answer,
    app::App,
    entrance::{EntranceFuture, refusal},
    infer::infer,
    leased::leased_or_refused,
    missing::check_ready,
    routes::routed,
};

/// Creates the REST API of a service as a tower service: the same as [`router`](crate::router), with less
/// overhead for inference.
#[must_use]
pub fn service(service: Arc<dyn InferenceService>, config: HttpConfig) -> HttpService {
    service_with(service, config, Router::new())
}

/// Creates the REST API with additional routes `more`. The rules for heads, unknown paths and wrong methods
/// apply to them too.
///
/// # Panics
/// When `more` has a fallback, or a path of the protocol.
#[must_use]
pub fn service_with(service: Arc<dyn InferenceService>, config: HttpConfig, more: Router) -> HttpService {
    let app = App::new(service, config);
    HttpService {
        router: routed(app.clone(), more),
        app,
    }
}

/// A tower service that handles HTTP requests; created by [`service`].
#[derive(Clone)]
pub struct HttpService {
    app: App,
    /// For everything except inference.
    router: Router,
}

impl<B> Service<Request<B>> for HttpService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = HttpAnswer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> HttpAnswer {
        #[cfg(unix)]
        if connection_memory::is_for(&request) {
            let answer = match refusal(&mut request, &self.app.config) {
                Some(response) => EntranceFuture::refused(response),
                None => {
                    let response = connection_memory::register(&self.app.config, &request);
                    EntranceFuture::admitted(Box::pin(ready(Ok(response))) as Answering)
                }
            };
            return HttpAnswer::Inference { answer };
        }
        if *request.method() != Method::POST || model_of(request.uri().path()).is_none() {
            let answer = self.router.call(request);
            return HttpAnswer::Routed { answer };
        }
        let answer = match refusal(&mut request, &self.app.config) {
            Some(response) => EntranceFuture::refused(response),
            None => EntranceFuture::admitted(answer(self.app.clone(), request)),
        };
        HttpAnswer::Inference { answer }
    }
}

/// Handles an inference request.
fn answer<B>(app: App, request: Request<B>) -> Answering
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    Box::pin(async move {
        let uri = request.uri().clone();
        let (model, version) = model_of(uri.path()).unwrap_or_default();
        let answered = async {
            let model = ModelRef::new(model, version)?;
            // Do not read a body for an unknown model.
            let grant = request.extensions().get::<Grant>().cloned();
            check_ready(&app, model, grant).await?;
            infer(app.clone(), model, request).await
        };
        Ok(match answered.await {
            Ok(response) => response,
            Err(failure) => leased_or_refused(answer::error(&failure), &app.config),
        })
    })
}

/// Returns model and version if a path is for inference and needs no decoding.
fn model_of(path: &str) -> Option<(&str, Option<&str>)> {
    let path = path.strip_prefix("/v2/models/")?;
    let path = path.strip_suffix('/').unwrap_or(path);
    let path = path.strip_suffix("/infer")?;
    let (model, version) = match path.split_once('/') {
        Some((model, rest)) => (model, Some(rest.strip_prefix("versions/")?)),
        None => (path, None),
    };
    let is_plain = |part: &str| !part.is_empty() && !part.bytes().any(|byte| matches!(byte, b'/' | b'%'));
    (is_plain(model) && version.is_none_or(is_plain)).then_some((model, version))
}

type Answering = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

pin_project! {
    /// The response future of an [`HttpService`].
    #[project = HttpAnswerProjection]
    pub enum HttpAnswer {
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

impl Future for HttpAnswer {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            HttpAnswerProjection::Inference { answer } => answer.poll(cx),
            HttpAnswerProjection::Routed { answer } => answer.poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_inference_are_told_from_others() {
        for (path, found) in [
            ("/v2/models/m/infer", Some(("m", None))),
            ("/v2/models/m/infer/", Some(("m", None))),
            ("/v2/models/infer/infer", Some(("infer", None))),
            ("/v2/models/m/versions/3/infer", Some(("m", Some("3")))),
            ("/v2/models/m/versions/3/infer/", Some(("m", Some("3")))),
            ("/v2/models/versions/infer", Some(("versions", None))),
            ("/v2/models/a b/infer", Some(("a b", None))),
            ("/v2/models//infer", None),
            ("/v2/models/m//infer", None),
            ("/v2/models/m/infer//", None),
            ("/v2/models/m/versions//infer", None),
            ("/v2/models/m/versions/infer", None),
            ("/v2/models/m/versions/3/4/infer", None),
            ("/v2/models/m/n/infer", None),
            ("/v2/models/m%2Fn/infer", None),
            ("/v2/models/m/versions/%33/infer", None),
            ("/v2/models/m/generate", None),
            ("/v2/models/infer", None),
            ("/v2/models/m", None),
            ("/v1/models/m/infer", None),
        ] {
            assert_eq!(model_of(path), found, "{path}");
        }
    }
}
