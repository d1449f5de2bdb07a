//! The Open Inference Protocol over gRPC: [`service`] exposes any `oip_service::InferenceService`, with
//! `grpc.health.v1` and server reflection.
//!
//! It returns a tower service for HTTP/2 requests; serve it with `oip-listen` or any hyper server, or add it
//! to tonic's routes with `add_service`, next to other services. Messages and a client are in [`proto`], a
//! superset of KServe's and Triton's definitions, so clients of both can call it. Calls that the service does
//! not support return `UNIMPLEMENTED`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use oip_grpc::proto::{ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient};
//! use oip_grpc::{GrpcConfig, service};
//! use oip_model::BoxFuture;
//! use oip_service::{InferenceService, Readiness, RequestContext};
//! use oip_types::{ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};
//!
//! /// A service without any model.
//! struct Nothing;
//!
//! impl InferenceService for Nothing {
//!     fn server_metadata(&self) -> ServerMetadata {
//!         ServerMetadata::new("nothing", "1.0")
//!     }
//!
//!     fn readiness(&self) -> Readiness {
//!         Readiness::Ready
//!     }
//!
//!     fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
//!         Err(ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist")))
//!     }
//!
//!     fn infer(&self, request: InferRequest, _: RequestContext) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
//!         Box::pin(async move { Err(self.model_metadata(request.model()).unwrap_err()) })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // A client can call the service right in the process; over a network it would call a channel.
//! let mut client = GrpcInferenceServiceClient::new(service(Arc::new(Nothing), GrpcConfig::default()));
//! let request = ModelInferRequest { model_name: "m".into(), ..Default::default() };
//! let status = client.model_infer(request).await.unwrap_err();
//! assert_eq!(status.code(), tonic::Code::NotFound);
//! # }
//! ```
//!
//! Features, all on by default: `server` provides [`service`]; `health` and `reflection` add their services
//! to it; `client` provides the generated client and [`client`], which encodes requests and decodes
//! responses. `oip-client` is a complete client on top of it.
//!
//! Raw request tensors are not copied: they are slices of the message. `docs/oip.md` of the repository lists
//! every call and status.

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
mod contents;
#[cfg(any(feature = "client", feature = "server"))]
mod parameters;
#[cfg(feature = "server")]
mod server;
#[cfg(any(feature = "client", feature = "server"))]
mod shape;

/// The protocol's messages, client (feature `client`) and server (feature `server`), generated from
/// `proto/inference.proto`.
#[allow(
    missing_docs,
    clippy::pedantic,
    clippy::doc_markdown,
    rustdoc::all,
    reason = "generated code"
)]
#[path = "generated/inference.rs"]
pub mod proto;

/// The descriptors of [`proto`], for reflection.
pub const FILE_DESCRIPTORS: &[u8] = include_bytes!("generated/inference.bin");

#[cfg(all(feature = "server", unix))]
pub use server::REGISTER_CONNECTION_MEMORY;
#[cfg(feature = "server")]
pub use server::{GrpcConfig, GrpcOutput, GrpcService, LASTING, MODEL_STREAM_INFER, error_response, service};
/// The body of a response.
#[cfg(feature = "server")]
pub use tonic::body::Body;
