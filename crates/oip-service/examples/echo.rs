//! Implements a service without an engine, and asks it as a transport does.
//!
//! ```sh
//! cargo run --package oip-service --example echo
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{error::Error, sync::Arc};

use oip_model::BoxFuture;
use oip_service::{InferenceService, RequestContext};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata,
    ServiceError, TensorMetadata,
};
use tensor_core::Tensor;

/// One model, `echo`, that returns its input.
struct Echo(Arc<ModelMetadata>);

impl InferenceService for Echo {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("echo", "1.0")
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        match model.name() {
            "echo" => Ok(self.0.clone()),
            _ => Err(ServiceError::new(
                ErrorCode::NotFound,
                format!("{model} does not exist"),
            )),
        }
    }

    fn infer(
        &self,
        mut request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            let output = InferOutput::new("x", request.take_input("x")?);
            Ok(InferResponse::new("echo", vec![output]))
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let x = TensorMetadata::new("x", DataType::FP32, &[-1]);
    let metadata = ModelMetadata::new("echo", "example_echo", vec![x.clone()], vec![x]);
    let service: Arc<dyn InferenceService> = Arc::new(Echo(Arc::new(metadata)));

    let x = Tensor::from_slice([3], &[1.0f32, 2.0, 3.5])?;
    let request = InferRequest::new(ModelRef::new("echo", None)?).with_input("x", x);
    let response = futures_executor::block_on(service.infer(request, RequestContext::new(None)))?;
    println!("x = {:?}", response.get::<f32>("x")?);
    Ok(())
}
