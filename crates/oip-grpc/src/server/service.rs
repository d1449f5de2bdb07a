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
use tower_service::Service;

use super::{AdmittedBody, GrpcConfig, admission::Admission, inference::Inference, status};
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;

/// The gRPC side of the protocol for a service, with health and reflection where their features are on.
#[must_use]
pub fn service(service: Arc<dyn InferenceService>, config: GrpcConfig) -> GrpcService {
    let budget = config.budget.clone();
    let max_message_bytes = config.max_message_bytes;
    let inference = GrpcInferenceServiceServer::new(Inference::new(service.clone(), config))
        .max_decoding_message_size(max_message_bytes)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let routes = Routes::new(inference);
    #[cfg(feature = "health")]
    let routes = routes.add_service(super::health::service(service));
    #[cfg(feature = "reflection")]
    let routes = with_reflection(routes);
    GrpcService {
        routes: routes.prepare(),
        budget,
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
        .add_service(builder().build_v1().expect(SOUND))
        // Older tools, grpcurl among them, ask for this one first.
        .add_service(builder().build_v1alpha().expect(SOUND))
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
