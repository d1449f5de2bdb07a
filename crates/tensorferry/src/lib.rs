//! Serve your own models over the Open Inference Protocol (KServe V2): an engine with queues, batches and
//! checks behind HTTP and gRPC, with a graceful shutdown.
//!
//! This crate is for programs that embed a server; `oip-server` is the server as a program. Implement
//! [`Model`], build an [`Engine`], and set the options of the transports ([`HttpConfig`], [`GrpcConfig`],
//! [`ConnectionLimits`]).
//!
//! ```toml
//! [dependencies]
//! tensorferry = { path = "../tensorferry/crates/tensorferry" }
//! tokio = { version = "1", features = ["macros", "rt-multi-thread", "signal"] }
//! ```
//!
//! ```no_run
//! use tensorferry::{
//!     Call, DataType, Engine, Model, ModelMetadata, Outcome, ServiceError, TensorMetadata, serve,
//! };
//!
//! struct Double(ModelMetadata);
//!
//! impl Model for Double {
//!     fn metadata(&self) -> &ModelMetadata {
//!         &self.0
//!     }
//!
//!     fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
//!         let x = call.request.take::<f32>("x")?;
//!         Ok(Outcome::output("y", x.map(|x| 2.0 * x)))
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
//!     let metadata = ModelMetadata::new("double", "example", tensor("x"), tensor("y"));
//!     let engine = Engine::builder().model(Double(metadata)).build()?;
//!     let server = serve(engine).http("127.0.0.1:8080".parse()?).grpc("127.0.0.1:9000".parse()?);
//!     server.until(tokio::signal::ctrl_c()).await?;
//!     Ok(())
//! }
//! ```

mod lasting_calls;
mod serve;

pub use oip_engine::{BuildError, Engine, EngineBuilder, EngineConfig, Repository};
pub use oip_grpc::GrpcConfig;
pub use oip_http::HttpConfig;
pub use oip_listen::ConnectionLimits;
pub use oip_model::{
    Backend, BoxFuture, Call, CancelToken, Capabilities, IndependentRows, Model, Outcome, Outputs,
    ResponseSink, RowIndependence,
};
pub use oip_service::{InferenceService, Readiness, RequestContext};
pub use oip_types::{
    BytesTensor, DataType, Elements, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata,
    ModelRef, Parameters, ServerMetadata, ServiceError, TensorMetadata, TensorValue,
};
pub use serve::{Running, Serve, serve};
pub use tensor_core::{Shape, Tensor};
