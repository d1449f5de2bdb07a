//! The interface between the Open Inference Protocol's transports and the services behind them.
//!
//! Transports (`oip-http`, `oip-grpc`) hold an `Arc<dyn `[`InferenceService`]`>` and depend on nothing else.
//! An engine (`oip-engine`), or your own service, implements that trait and does not depend on any transport.
//! Inside an engine, a model is a [`Model`]: plain blocking code. A [`Backend`] loads models from files.
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
//! use oip_service::{BoxFuture, InferenceService, RequestContext};
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

mod backend;
mod budget;
mod buffer;
mod call;
mod call_slot;
mod cancel;
mod capabilities;
#[cfg(feature = "compression")]
pub mod compression;
#[cfg(unix)]
mod connection_memory;
mod cpu_pool;
mod delivery;
mod extended_service;
pub mod extensions;
mod grant;
mod lease;
mod model;
mod model_calls;
mod notes;
mod panics;
mod request_ids;
mod responses;
pub mod route;
mod row_independence;
mod service;
mod service_wrapper;
mod shared_inputs;
#[cfg(feature = "testing")]
pub mod testing;
mod time_limits;
mod token_bucket;

pub use backend::{
    Backend, ConfiguredTensors, InputDims, LoadContext, ModelFiles, ModelSource, NeedsProcess,
};
pub use budget::ByteBudget;
pub use buffer::Buffer;
pub use call::{Call, Outcome, Outputs, RequestPart, RestOfRun};
pub use call_slot::{CallSlot, RevocableSlot};
pub use cancel::{CancelGuard, CancelToken};
pub use capabilities::{
    BoxFuture, Classes, Classification, Logging, ModelConfiguration, ModelRepository, Statistics,
    SystemSharedMemory,
};
#[cfg(unix)]
pub use connection_memory::{ConnectionMemory, ConnectionRegion, OpenConnectionMemory, not_passed};
pub use cpu_pool::CpuPool;
pub use delivery::{NamedModel, respond, respond_stream};
pub use extended_service::ExtendedService;
pub use grant::{Grant, Rights};
pub use lease::{Charge, Lease};
pub use machine_memory::{available_memory, memory_limit, private_memory};
pub use model::{Capabilities, Model};
pub use model_calls::{ModelCall, NoOtherModels, OtherModels};
pub use notes::{Laps, Phase, RequestNotes, Stage, StageKind};
pub use oip_types;
pub use panics::{CatchPanic, catch_panic, service_panicked};
pub use request_ids::RequestIds;
pub use responses::{ResponseSink, ResponseStream, Responses, StreamedResponse};
pub use row_independence::{IndependentRows, RowIndependence};
pub use service::{InferenceService, Readiness, RequestContext};
pub use service_wrapper::ServiceWrapper;
pub use shared_inputs::SharedInputs;
pub use time_limits::TimeLimits;
pub use token_bucket::TokenBucket;
