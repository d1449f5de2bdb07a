//! Serves HTTP and gRPC on one port. gRPC requests are recognized by HTTP/2 and their content type.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::{Request, Response},
};
use oip_service::route::is_grpc;
use tower_service::Service;

/// Passes each request to one of two services.
#[derive(Clone)]
pub(super) struct OnePort<H, G> {
    http: H,
    grpc: G,
}

impl<H, G> OnePort<H, G> {
    pub(super) fn new(http: H, grpc: G) -> Self {
        Self { http, grpc }
    }
}

impl<B, H, G> Service<Request<B>> for OnePort<H, G>
where
    H: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    H::Future: Send + 'static,
    G: Service<Request<B>, Response = Response<oip_grpc::Body>, Error = Infallible>,
    G::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both services are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if is_grpc(&request) {
            let answer = self.grpc.call(request);
            Box::pin(async { answer.await.map(|answer| answer.map(Body::new)) })
        } else {
            Box::pin(self.http.call(request))
        }
    }
}
