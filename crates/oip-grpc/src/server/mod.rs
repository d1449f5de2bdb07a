//! The server side: an [`InferenceService`](oip_service::InferenceService) behind the protocol's calls.

mod admission;
mod config;
mod contents;
mod convert;
#[cfg(feature = "health")]
mod health;
mod inference;
mod service;
mod status;

pub use admission::AdmittedBody;
pub use config::{GrpcConfig, GrpcOutput};
pub use service::{GrpcService, service};
