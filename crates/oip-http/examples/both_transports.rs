//! Serves a hand-written model over both transports, without the engine.
//!
//! ```sh
//! cargo run --package oip-http --example both_transports
//! curl http://127.0.0.1:8080/v2/models/double/infer \
//!     -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3.5]}]}'
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;

use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen, serve};
use oip_model::BoxFuture;
use oip_service::{InferenceService, RequestContext};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata,
    ServiceError, TensorMetadata,
};

/// A service with one model, `double`, which doubles its input.
struct Double;

impl InferenceService for Double {
    fn server_metadata(&self) -> ServerMetadata {
        // The transports add the extensions that they and this service support.
        ServerMetadata::new("double", "1.0")
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        if (model.name(), model.version()) != ("double", None) {
            let message = format!("{model} does not exist");
            return Err(ServiceError::new(ErrorCode::NotFound, message));
        }
        Ok(Arc::new(ModelMetadata::new(
            "double",
            "example_double",
            vec![TensorMetadata::new("x", DataType::FP32, &[-1])],
            vec![TensorMetadata::new("y", DataType::FP32, &[-1])],
        )))
    }

    fn infer(
        &self,
        mut request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            // The transport has checked the request against the metadata, and filters the requested outputs.
            let x = request.take::<f32>("x")?;
            let y = InferOutput::new("y", x.map(|x| 2.0 * x));
            Ok(InferResponse::new("double", vec![y]))
        })
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let (limits, shutdown) = (ConnectionLimits::default(), Shutdown::new());
    let rest = oip_http::router(Arc::new(Double), HttpConfig::default());
    let calls = oip_grpc::service(Arc::new(Double), GrpcConfig::default());
    let (http, grpc) = (([127, 0, 0, 1], 8080).into(), ([127, 0, 0, 1], 9000).into());
    println!("HTTP on {http}, gRPC on {grpc}");
    tokio::spawn(serve(
        listen(http)?,
        Protocol::Http1,
        rest,
        limits.clone(),
        shutdown.clone(),
    ));
    let limits = limits.with(|limits| limits.conversations = &[oip_grpc::MODEL_STREAM_INFER]);
    serve(listen(grpc)?, Protocol::Http2, calls, limits, shutdown).await;
    Ok(())
}
