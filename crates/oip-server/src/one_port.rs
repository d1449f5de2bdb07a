//! HTTP and gRPC behind one port: a request is gRPC's if it comes over HTTP/2 and says so by its content type.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, Version, header::CONTENT_TYPE},
};
use oip_grpc::GrpcService;
use oip_listen::RequestBody;
use tower_service::Service;

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

impl Service<Request<RequestBody>> for OnePort {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both always are.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        if is_grpc(&request) {
            let answer = self.grpc.call(request);
            Box::pin(async { answer.await.map(|answer| answer.map(Body::new)) })
        } else {
            Box::pin(self.http.call(request))
        }
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    request.version() == Version::HTTP_2
        && content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
