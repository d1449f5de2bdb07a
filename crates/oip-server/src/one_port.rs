//! HTTP and gRPC behind one port: a request is gRPC's if it comes over HTTP/2 and says so by its content type.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, HttpBody},
    http::{Request, Response},
};
use bytes::Bytes;
use oip_grpc::GrpcService;
use tower_service::Service;

use crate::traffic::is_grpc;

/// Both services, of which each request has one.
#[derive(Clone)]
pub(crate) struct OnePort {
    http: Router,
    grpc: GrpcService,
}

impl OnePort {
    pub(crate) fn new(http: Router, grpc: GrpcService) -> Self {
        Self { http, grpc }
    }
}

impl<B> Service<Request<B>> for OnePort
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both always are.
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
