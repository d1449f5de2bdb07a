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
use oip_service::{ByteBudget, InferenceService};
use tonic::{codec::CompressionEncoding, service::Routes};
use tonic_health::pb::health_server::HealthServer;
use tower_service::Service;

use crate::{
    AdmittedBody, FILE_DESCRIPTORS, GrpcConfig, admission::Admission, health::HealthService,
    inference::Inference, proto::grpc_inference_service_server::GrpcInferenceServiceServer, status,
};

/// The gRPC side of the protocol for a service, with health and reflection.
///
/// # Panics
/// Never: the descriptors for reflection are this crate's own.
#[must_use]
pub fn service(service: Arc<dyn InferenceService>, config: GrpcConfig) -> GrpcService {
    let budget = config.budget.clone();
    let max_message_bytes = config.max_message_bytes;
    let inference = GrpcInferenceServiceServer::new(Inference::new(service.clone(), config))
        .max_decoding_message_size(max_message_bytes)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    const SOUND: &str = "the committed descriptors are sound";
    let routes = Routes::new(inference)
        .add_service(HealthServer::new(HealthService(service)))
        .add_service(reflection().build_v1().expect(SOUND))
        // Older tools, grpcurl among them, ask for this one first.
        .add_service(reflection().build_v1alpha().expect(SOUND));
    GrpcService {
        routes: routes.prepare(),
        budget,
    }
}

/// A tower service that answers gRPC requests; made by [`service`].
#[derive(Clone)]
pub struct GrpcService {
    routes: Routes,
    budget: ByteBudget,
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
        // The empty permit cannot be refused.
        let admission = Admission::new(&self.budget).ok();
        if let Some(admission) = &admission {
            request.extensions_mut().insert(admission.clone());
        }
        let request = request.map(|body| tonic::body::Body::new(AdmittedBody::new(body, admission)));
        let answer = self.routes.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            status::harmonise(&mut response);
            Ok(response)
        })
    }
}

/// An HTTP answer to requests that a gRPC client would not send.
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
