//! The server side: an [`InferenceService`](oip_service::InferenceService) behind the protocol's calls.

mod admission;
mod calls;
mod config;
mod convert;
#[cfg(feature = "health")]
mod health;
mod inference;
mod logging;
mod model_config;
mod repository;
mod service;
mod shared_memory;
mod statistics;
mod status;
mod stream;

pub use admission::AdmittedBody;
pub use config::{GrpcConfig, GrpcOutput};
pub use service::{GrpcService, MODEL_STREAM_INFER, service};
