use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{self, HeaderName},
};
use http_body::Body;
use oip_service::{ByteBudget, InferenceService, catch_panic};
use tonic::{codec::CompressionEncoding, service::Routes};
use tower_service::Service;

use super::{AdmittedBody, GrpcConfig, admission::Admission, calls::Calls, inference::Inference, status};
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;

/// The path of the call whose requests and answers are a conversation. Its body may be silent for as long as the client
/// likes: what is served with limits on that must except it. Messages that stop half-way are ended here.
pub const MODEL_STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The gRPC side of the protocol for a service, with health and reflection where their features are on.
#[must_use]
#[cfg_attr(
    not(feature = "health"),
    expect(
        clippy::needless_pass_by_value,
        reason = "the signature is the same whatever the features"
    )
)]
pub fn service(service: Arc<dyn InferenceService>, config: GrpcConfig) -> GrpcService {
    let budget = config.budget.clone();
    let max_message_bytes = config.max_message_bytes;
    let inference = Arc::new(Inference::new(service.clone(), config));
    let calls = GrpcInferenceServiceServer::new(Calls(inference.clone()))
        .max_decoding_message_size(max_message_bytes)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .send_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Deflate);
    let routes = Routes::new(calls);
    #[cfg(feature = "health")]
    let routes = routes.add_service(super::health::service(service));
    #[cfg(feature = "reflection")]
    let routes = with_reflection(routes);
    GrpcService {
        routes: routes.prepare(),
        budget,
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
        .add_service(builder().build_v1().expect(SOUND))
        // Older tools, grpcurl among them, ask for this one first.
        .add_service(builder().build_v1alpha().expect(SOUND))
}

/// A tower service that answers gRPC requests; made by [`service`].
#[derive(Clone)]
pub struct GrpcService {
    routes: Routes,
    budget: ByteBudget,
    inference: Arc<Inference>,
}

impl GrpcService {
    /// Brings streams to their end, those that are open and those to come, for a server that is to stop: the requests
    /// that were read are answered, then the stream is closed with `UNAVAILABLE`.
    ///
    /// A connection's graceful shutdown waits for its streams, and clients may keep them open for ever.
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
        // The empty permit cannot be refused.
        let admission = Admission::new(&self.budget).ok();
        if let Some(admission) = &admission {
            request.extensions_mut().insert(admission.clone());
        }
        compress_as_asked(&mut request);
        let request = request.map(|body| tonic::body::Body::new(AdmittedBody::new(body, admission)));
        let answer = self.routes.call(request);
        Box::pin(async move {
            let mut response = catch_panic(answer)
                .await
                .unwrap_or_else(|error| Ok(status::from_error(&error).into_http()))?;
            status::harmonise(&mut response);
            Ok(response)
        })
    }
}

/// Leaves in the request as accepted encoding what its own messages have.
///
/// Most clients say in each request that they accept gzip and deflate, whether they want that or not. Tensors rarely
/// get smaller, so only clients that compress what they send have their answers compressed, each in its own way. Of
/// the calls, inference alone: an answer of any other is small, and within a stream nothing can be left uncompressed.
fn compress_as_asked<B>(request: &mut Request<B>) {
    const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
    const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
    const ACCEPT: HeaderName = HeaderName::from_static("grpc-accept-encoding");
    let is_infer = request.uri().path() == INFER;
    let headers = request.headers_mut();
    let accepted = headers.remove(ACCEPT);
    let own = headers.get(ENCODING).filter(|_| is_infer);
    if let (Some(own), Some(accepted)) = (own.cloned(), accepted)
        && let (Ok(name), Ok(accepted)) = (own.to_str(), accepted.to_str())
        && accepted.split(',').any(|encoding| encoding.trim() == name)
    {
        headers.insert(ACCEPT, own);
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
