//! Serve your own models over the Open Inference Protocol (KServe V2): an engine with queues, batches and checks, HTTP and
//! gRPC in front of it, and a drain at the end.
//!
//! This crate is for programs that embed a server; the server as a program is `oip-server`. Implement [`Model`], build an
//! [`Engine`], and set the options of the transports ([`HttpConfig`], [`GrpcConfig`], [`Limits`]).
//!
//! ```toml
//! [dependencies]
//! tensorferry = { path = "../tensorferry/crates/tensorferry" }
//! tokio = { version = "1", features = ["macros", "rt-multi-thread", "signal"] }
//! ```
//!
//! ```no_run
//! use tensorferry::{
//!     CancelToken, DataType, Engine, InferOutput, InferRequest, Model, ModelMetadata, ServiceError, Tensor,
//!     TensorMetadata, serve,
//! };
//!
//! struct Double(ModelMetadata);
//!
//! impl Model for Double {
//!     fn metadata(&self) -> &ModelMetadata {
//!         &self.0
//!     }
//!
//!     fn infer(&self, mut request: InferRequest, _: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
//!         let broken = |error: &dyn std::fmt::Display| ServiceError::internal(error.to_string());
//!         let x = request.take_input("x")?;
//!         let x = x.as_fixed().ok_or_else(|| broken(&"x has no fixed width"))?;
//!         let doubled = x.to_vec::<f32>().map_err(|error| broken(&error))?;
//!         let y = Tensor::from_vec(x.shape().clone(), doubled.iter().map(|x| 2.0 * x).collect());
//!         Ok(vec![InferOutput::new("y", y.map_err(|error| broken(&error))?)])
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
//!     let metadata = ModelMetadata::new("double", "example", tensor("x"), tensor("y"));
//!     let engine = Engine::builder().model(Double(metadata)).build()?;
//!     let server = serve(engine).http("127.0.0.1:8080".parse()?).grpc("127.0.0.1:9000".parse()?);
//!     server.until(async { drop(tokio::signal::ctrl_c().await) }).await?;
//!     Ok(())
//! }
//! ```

mod lasting_calls;
mod serve;

pub use oip_engine::{BuildError, Engine, EngineBuilder, EngineConfig, Repository};
pub use oip_grpc::GrpcConfig;
pub use oip_http::HttpConfig;
pub use oip_listen::Limits;
pub use oip_service::{
    AnswerSink, Backend, CancelToken, IndependentRows, InferenceService, Model, ModelDefaults,
    RowIndependence,
};
pub use oip_types::{
    BytesTensor, DataType, ErrorCode, InferOutput, InferRequest, ModelMetadata, Parameters, ServiceError,
    TensorMetadata, TensorValue,
};
pub use serve::{Running, Serve, serve};
pub use tensor_core::{Shape, Tensor};
