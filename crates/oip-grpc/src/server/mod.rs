//! The server side: exposes an [`InferenceService`](oip_service::InferenceService).

mod calls;
mod config;
mod control;
mod convert;
mod encoding;
mod frame_head;
mod head;
#[cfg(feature = "health")]
mod health;
mod inference;
mod leased;
mod logging;
mod messages;
mod model_config;
mod repository;
mod request;
mod response;
mod service;
mod shared_memory;
mod statistics;
mod status;
mod stream;
mod unary;

pub use config::{GrpcConfig, GrpcOutput};
#[cfg(unix)]
pub use service::REGISTER_CONNECTION_MEMORY;
pub use service::{GrpcService, LASTING, MODEL_STREAM_INFER, service};
pub use status::error_response;
