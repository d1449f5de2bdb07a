//! The tower service that dispatches gRPC requests.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use oip_resources::Lease;
use oip_service::{CatchPanic, InferenceService, catch_panic};
use oip_types::ServiceError;
use pin_project_lite::pin_project;
use tonic::{codec::CompressionEncoding, server::NamedService, service::Routes};
use tower_service::Service;

use super::{
    GrpcConfig,
    calls::Calls,
    control::{self, ControlBody, ControlCharge},
    head,
    inference::Inference,
    leased::leased,
    status, stream, unary,
};
use crate::proto::grpc_inference_service_server::{GrpcInferenceServiceServer, SERVICE_NAME};

/// The path of unary inference.
const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The path of streaming inference. The body of such a request may be silent indefinitely, so servers with
/// body timeouts must exempt this path. This crate detects stalls within a message.
pub const MODEL_STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The paths of long-lived calls that are mostly idle. Servers that limit concurrent calls add a
/// [`CallSlot`](oip_resources::CallSlot) as an extension; a call whose slot is revoked ends with
/// `UNAVAILABLE`.
pub const LASTING: &[&str] = &[
    MODEL_STREAM_INFER,
    #[cfg(feature = "health")]
    "/grpc.health.v1.Health/Watch",
];

/// The path of calls that register a connection's shared memory region. Such a call is the first on a
/// connection over a Unix socket and is sent with a descriptor.
#[cfg(unix)]
pub const REGISTER_CONNECTION_MEMORY: &str = "/inference.GRPCInferenceService/ConnectionSharedMemoryRegister";

/// Creates the gRPC service, with health and reflection if their features are enabled.
#[must_use]
#[cfg_attr(
    not(feature = "health"),
    expect(
        clippy::needless_pass_by_value,
        reason = "the signature is the same whatever the features"
    )
)]
pub fn service(service: Arc<dyn InferenceService>, config: GrpcConfig) -> GrpcService {
    let inference = Arc::new(Inference::new(service.clone(), config));
    let limit = inference.config.max_message_bytes.min(control::MAX_MESSAGE);
    let calls = GrpcInferenceServiceServer::new(Calls(inference.clone()))
        .max_decoding_message_size(limit)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let routes = Routes::new(calls);
    #[cfg(feature = "health")]
    let routes = {
        let health = super::health::service(service, inference.is_draining.subscribe());
        routes.add_service(health.max_decoding_message_size(limit))
    };
    #[cfg(feature = "reflection")]
    let routes = with_reflection(routes);
    GrpcService {
        routes: routes.prepare(),
        inference,
    }
}

#[cfg(feature = "reflection")]
fn with_reflection(routes: Routes) -> Routes {
    let builder = || {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::FILE_DESCRIPTORS);
        #[cfg(feature = "health")]
        let builder = builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        builder
    };
    const SOUND: &str = "the committed descriptors are sound";
    routes
        .add_service(
            builder()
                .build_v1()
                .expect(SOUND)
                .max_decoding_message_size(control::MAX_MESSAGE),
        )
        // Older tools such as grpcurl try this version of reflection first.
        .add_service(
            builder()
                .build_v1alpha()
                .expect(SOUND)
                .max_decoding_message_size(control::MAX_MESSAGE),
        )
}

/// A tower service that handles gRPC requests; created by [`service`].
#[derive(Clone)]
pub struct GrpcService {
    routes: Routes,
    inference: Arc<Inference>,
}

/// The name under which `add_service` of tonic's routes and servers registers the service. The name covers
/// only the protocol's own calls: health and reflection have other names, and a server with several services
/// adds its own.
impl NamedService for GrpcService {
    const NAME: &'static str = SERVICE_NAME;
}

impl GrpcService {
    /// Ends all current and future streams before a server stops: requests already read get their responses,
    /// then the stream closes with `UNAVAILABLE`.
    ///
    /// A graceful shutdown waits for streams, which clients may keep open forever.
    pub fn drain_streams(&self) {
        self.inference.is_draining.send_replace(true);
    }
}

impl<B> Service<Request<B>> for GrpcService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(refusal) = refuse_what_is_no_grpc(&request) {
            return Box::pin(async { Ok(refusal) });
        }
        if let Err(error) = head::admit(&mut request, &self.inference.config) {
            return Box::pin(async move { Ok(refused(&error)) });
        }
        match request.uri().path() {
            MODEL_INFER => {
                let answer = unary::call(self.inference.clone(), request);
                Box::pin(PanicGuard {
                    answer: catch_panic(answer),
                })
            }
            MODEL_STREAM_INFER => {
                let response = stream::open(self.inference.clone(), request);
                Box::pin(async { Ok(response) })
            }
            _ => self.control(request),
        }
    }
}

pin_project! {
    /// A future that turns panics into responses. An `async` block in its place would triple the size of the
    /// wrapped future, which is thousands of bytes.
    struct PanicGuard<F> {
        #[pin]
        answer: CatchPanic<F>,
    }
}

impl<F> Future for PanicGuard<F>
where
    F: Future<Output = Response<tonic::body::Body>>,
{
    type Output = Result<Response<tonic::body::Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.project().answer.poll(cx);
        answer.map(|answer| Ok(answer.unwrap_or_else(|error| refused(&error))))
    }
}

impl GrpcService {
    /// Handles calls other than inference through `tonic`.
    fn control<B>(&mut self, request: Request<B>) -> <Self as Service<Request<B>>>::Future
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let config = &self.inference.config;
        let lease = Lease::new(&config.budget, &config.time);
        let charge = match ControlCharge::new(&lease) {
            Ok(charge) => charge,
            Err(error) => return Box::pin(async move { Ok(refused(&error)) }),
        };
        let body = |body| tonic::body::Body::new(ControlBody::new(body, charge.clone()));
        let answer = self.routes.call(request.map(body));
        Box::pin(async move {
            let mut response = catch_panic(answer)
                .await
                .unwrap_or_else(|error| Ok(refused(&error)))?;
            status::harmonise(&mut response);
            drop(charge);
            Ok(leased(response, lease)
                .await
                .unwrap_or_else(|error| refused(&error)))
        })
    }
}

/// Creates a response with only a status.
fn refused(error: &ServiceError) -> Response<tonic::body::Body> {
    status::from_error(error).into_http()
}

/// Returns an HTTP response for requests that are not gRPC.
fn refuse_what_is_no_grpc<B>(request: &Request<B>) -> Option<Response<tonic::body::Body>> {
    let content_type = request
        .headers()
        .get(header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let status = if request.method() != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !content_type.starts_with(b"application/grpc") {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else {
        return None;
    };
    let mut response = Response::new(tonic::body::Body::empty());
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static("POST"));
    }
    Some(response)
}
