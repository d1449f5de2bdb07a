//! The Open Inference Protocol over HTTP: [`service`] exposes any
//! [`InferenceService`](oip_service::InferenceService) as a tower service, and [`router`] as an axum
//! `Router`.
//!
//! ```
//! use std::sync::Arc;
//! use axum::{body::Body, http::Request};
//! use oip_http::{HttpConfig, service};
//! use oip_model::BoxFuture;
//! use oip_service::{InferenceService, Readiness, RequestContext};
//! use oip_types::{ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};
//! use tower::ServiceExt;
//!
//! struct Nothing;
//!
//! impl InferenceService for Nothing {
//!     fn server_metadata(&self) -> ServerMetadata {
//!         ServerMetadata::new("nothing", "1.0")
//!     }
//!     fn readiness(&self) -> Readiness {
//!         Readiness::Ready
//!     }
//!     fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
//!         Err(ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist")))
//!     }
//!     fn infer(&self, request: InferRequest, _: RequestContext) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
//!         Box::pin(async move { Err(self.model_metadata(request.model()).unwrap_err()) })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let app = service(Arc::new(Nothing), HttpConfig::default());
//! let request = Request::get("/v2/models/m").header("host", "localhost").body(Body::empty()).unwrap();
//! let response = app.oneshot(request).await.unwrap();
//! assert_eq!(response.status(), 404);
//! # }
//! ```
//!
//! [`protocol_routes`] can be merged into a program's own router.
//!
//! Serve it with `oip-listen`, or with `axum::serve` behind a proxy that protects the server from slow
//! clients. It needs a Tokio runtime with timers, since it enforces deadlines. Large bodies are parsed on the
//! threads of a [`CpuPool`](oip_resources::CpuPool).
//!
//! `docs/oip.md` lists every endpoint, header and status.

mod app;
mod browsers;
mod config;
#[cfg(unix)]
mod connection_memory;
mod content_encoding;
mod described_models;
mod description;
mod entrance;
mod extensions;
mod generate;
mod head;
mod infer;
mod leased;
mod missing;
mod model_names;
mod negotiation;
mod read_body;
mod response;
mod routes;
mod service;
mod text;
mod v1;

pub use browsers::AllowedHosts;
pub use config::HttpConfig;
#[cfg(unix)]
pub use connection_memory::REGISTER_CONNECTION_MEMORY;
pub use description::OPENAPI;
pub use leased::leased;
pub use response::{error as error_response, error_to as error_response_to};
pub use routes::{paths, protocol_routes, router, router_with};
pub use service::{HttpFuture, HttpService, service, service_with};
