//! The interface between the Open Inference Protocol's transports and the services behind them.
//!
//! Transports (`oip-http`, `oip-grpc`) hold an `Arc<dyn `[`InferenceService`]`>` and depend on no engine.
//! An engine (`oip-engine`), or your own service, implements that trait and does not depend on any transport.
//! What a request may use of memory, time and CPU is in `oip-resources`; the models and backends that an
//! engine runs implement the traits of `oip-model`.
//!
//! ```text
//!  oip-http ─┐                         ┌─ oip-engine ── Model ◀── Backend (ONNX, tensor files, yours)
//!            ├─▶ dyn InferenceService ─┤
//!  oip-grpc ─┘                         └─ a service of your own
//! ```
//!
//! A complete service in a few lines, which both transports can serve:
//!
//! ```
//! use oip_model::BoxFuture;
//! use oip_service::{InferenceService, RequestContext};
//! use oip_types::{
//!     DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata,
//!     ServiceError, TensorMetadata,
//! };
//! use std::sync::Arc;
//!
//! /// One model, `echo`, that returns its input.
//! struct Echo(Arc<ModelMetadata>);
//!
//! impl InferenceService for Echo {
//!     fn server_metadata(&self) -> ServerMetadata {
//!         ServerMetadata::new("echo", "1.0")
//!     }
//!
//!     fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
//!         match model.name() {
//!             "echo" => Ok(self.0.clone()),
//!             _ => Err(ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist"))),
//!         }
//!     }
//!
//!     fn infer(&self, mut request: InferRequest, _: RequestContext) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
//!         Box::pin(async move {
//!             let output = InferOutput::new("bytes", request.take_input("bytes")?);
//!             Ok(InferResponse::new("echo", vec![output]))
//!         })
//!     }
//! }
//!
//! let bytes = TensorMetadata::new("bytes", DataType::UINT8, &[-1]);
//! let metadata = ModelMetadata::new("echo", "example_echo", vec![bytes.clone()], vec![bytes]);
//! let service: Arc<dyn InferenceService> = Arc::new(Echo(Arc::new(metadata)));
//! assert!(service.model_ready(ModelRef::new("echo", None).unwrap()).is_ok());
//! ```
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

mod capabilities;
mod delivery;
mod extended_service;
pub mod extensions;
mod grant;
mod panics;
mod request_ids;
pub mod route;
mod service;
mod service_wrapper;
mod shared_inputs;
#[cfg(feature = "testing")]
pub mod testing;

pub use capabilities::{
    Classes, Classification, Logging, ModelConfiguration, ModelRepository, Statistics, SystemSharedMemory,
};
pub use delivery::{NamedModel, respond, respond_stream};
pub use extended_service::ExtendedService;
pub use grant::{Grant, Rights};
pub use oip_types;
pub use panics::{CatchPanic, catch_panic, service_panicked};
pub use request_ids::RequestIds;
pub use service::{InferenceService, Readiness, RequestContext};
pub use service_wrapper::ServiceWrapper;
pub use shared_inputs::SharedInputs;
