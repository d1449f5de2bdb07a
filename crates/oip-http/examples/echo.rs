//! A custom server over HTTP and gRPC with one model, `echo`, which returns its input. The service is that of
//! `crates/tensorferry/examples/echo.rs`; here the program has its own listeners and shutdown.

use std::sync::Arc;

use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen, serve};
use oip_model::BoxFuture;
use oip_service::{InferenceService, RequestContext};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata,
    ServiceError, TensorMetadata,
};

struct Echo(Arc<ModelMetadata>);

impl InferenceService for Echo {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("echo", "1.0")
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        let found = (model.name() == "echo").then(|| self.0.clone());
        found.ok_or_else(|| ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist")))
    }

    fn infer(
        &self,
        mut request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            let y = InferOutput::new("y", request.take_input("x")?);
            Ok(InferResponse::new("echo", vec![y]))
        })
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let metadata = ModelMetadata::new("echo", "example", tensor("x"), tensor("y"));
    let service = Arc::new(Echo(Arc::new(metadata)));
    let (limits, shutdown) = (ConnectionLimits::default(), Shutdown::new());
    let rest = oip_http::router(service.clone(), Default::default());
    let calls = oip_grpc::service(service, Default::default());
    let http = listen(([127, 0, 0, 1], 8080).into())?;
    let grpc = listen(([127, 0, 0, 1], 9000).into())?;
    // `shutdown.drain()` ends both after open requests have finished, `shutdown.cut()` ends them immediately.
    tokio::join!(
        serve(http, Protocol::Http1, rest, limits.clone(), shutdown.clone()),
        serve(grpc, Protocol::Http2, calls, limits, shutdown),
    );
    Ok(())
}
