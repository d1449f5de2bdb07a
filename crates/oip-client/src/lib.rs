//! A client of the Open Inference Protocol (KServe V2) over HTTP and gRPC, for Tensorferry, Triton, MLServer,
//! KServe and other servers.
//!
//! [`HttpClient`] and [`GrpcClient`] implement the two transports behind the common trait
//! [`InferenceClient`]; [`builder`] chooses one by URL. Requests, responses and metadata are types of
//! `oip-types` and `tensor-core`. This crate exports those of inference requests; depend on `oip-types` for
//! the types of the other calls.
//!
//! ```toml
//! [dependencies]
//! oip-client = { path = "../tensorferry/crates/oip-client" }
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! ```
//! # use std::{convert::Infallible, sync::Arc};
//! # use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen, serve};
//! # use oip_service::testing::TestService;
//! use oip_client::{ErrorCode, InferRequest, ModelRef, Tensor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "http://127.0.0.1:8080"; // or grpc://127.0.0.1:9000
//! # let listener = listen("127.0.0.1:0".parse()?)?;
//! # let url = format!("http://{}", listener.local_addr()?);
//! # let app = oip_http::router(Arc::new(TestService::default()), oip_http::HttpConfig::default());
//! # tokio::spawn(serve(listener, Protocol::Http1, app, ConnectionLimits::default(), Shutdown::new()));
//! let client = oip_client::builder(url).build()?;
//! let model = ModelRef::new("identity_fp32", None)?;
//! assert!(client.model_ready(model).await?);
//! assert_eq!(client.model_metadata(model).await?.inputs[0].to_string(), "'x' (FP32[-1])");
//!
//! let x = Tensor::from_slice([2], &[1.5f32, -2.0])?;
//! let response = client.infer(&InferRequest::new(model).with_input("x", x)).await?;
//! assert_eq!(response.get::<f32>("y")?[..], [1.5, -2.0]);
//!
//! let error = client.model_metadata(ModelRef::new("zz", None)?).await.unwrap_err();
//! assert_eq!(error.code(), Some(ErrorCode::NotFound));
//! assert!(error.message().starts_with("model 'zz' does not exist"));
//! # Ok(())
//! # }
//! ```
//!
//! The clients need a Tokio runtime with timers and I/O; `BlockingClient` needs none and blocks the calling
//! thread. `https://` and `grpcs://` use TLS 1.2 and 1.3 via rustls.
//!
//! # Retries
//!
//! A request is retried if it was never sent, and if the server asks to retry later (429, 503, `UNAVAILABLE`,
//! `RESOURCE_EXHAUSTED`), after a pause that the server may set. An inference whose response was truncated is
//! retried only with [`RetryOn::Broken`], which declares that running the model twice does no harm. See
//! [`RetryPolicy`].
//!
//! # Features
//!
//! `http` and `grpc` enable the transports. Both are on by default; at least one is required.

#[cfg(not(any(feature = "http", feature = "grpc")))]
compile_error!("oip-client needs one of its features `http` and `grpc`");

mod any_transport;
mod builder;
mod client;
mod connect;
mod connector;
mod endpoint;
mod error;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "http")]
mod http;
mod offload;
#[cfg(all(feature = "http", unix))]
mod patience;
mod retry;
mod settings;
#[cfg(target_os = "linux")]
mod shared_memory;
mod tls;

#[cfg(all(feature = "http", unix))]
pub use self::http::BlockingClient;
#[cfg(feature = "http")]
pub use self::http::HttpClient;
pub use builder::Builder;
pub use client::{BoxFuture, BoxStream, InferenceClient, Result};
pub use error::{ClientError, ErrorKind, Status};
#[cfg(feature = "grpc")]
pub use grpc::GrpcClient;
pub use oip_types::{
    BytesTensor, DataType, Elements, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata,
    ModelRef, Parameters, ServiceError, TensorMetadata, TensorValue,
};
#[cfg(all(feature = "http", unix))]
pub use patience::Patience;
pub use retry::{RetryOn, RetryPolicy};
pub use settings::{Compression, TensorForm};
pub use tensor_core::{Shape, Tensor};

/// Creates a builder whose transport depends on the URL: `http://host:8000`, with or without a path prefix
/// before `/v2`, or `grpc://host:8001`.
///
/// ```
/// let client = oip_client::builder("grpc://localhost:9000").build()?;
/// # Ok::<(), oip_client::ClientError>(())
/// ```
pub fn builder(url: impl Into<String>) -> Builder<Box<dyn InferenceClient>> {
    Builder::new(url)
}
