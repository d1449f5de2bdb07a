//! Your own service behind HTTP and gRPC, without an engine's queues and threads: one model, `echo`, which
//! returns its input. docs/crates.md shows this file.

use std::sync::Arc;

use tensorferry::{
    BoxFuture, DataType, ErrorCode, InferOutput, InferRequest, InferResponse, InferenceService,
    ModelMetadata, ModelRef, RequestContext, ServerMetadata, ServiceError, TensorMetadata, serve,
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
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let metadata = ModelMetadata::new("echo", "example", tensor("x"), tensor("y"));
    let server = serve(Echo(Arc::new(metadata)))
        .http("127.0.0.1:8080".parse()?)
        .grpc("127.0.0.1:9000".parse()?);
    server.until(tokio::signal::ctrl_c()).await?;
    Ok(())
}
