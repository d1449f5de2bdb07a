//! A model is plain blocking code: what it takes, what it gives, and how.
//!
//! ```sh
//! cargo run --package oip-service --example model
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use oip_service::{CancelToken, Model};
use oip_types::{DataType, InferOutput, InferRequest, ModelMetadata, ModelRef, ServiceError, TensorMetadata};
use tensor_core::{Shape, Tensor};

struct Double(ModelMetadata);

impl Model for Double {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, mut request: InferRequest, _: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
        // The caller has checked the request against the metadata: there is an x, and it is FP32.
        let x = request.take_input("x")?;
        let x = x
            .as_fixed()
            .ok_or_else(|| ServiceError::internal("x has no numbers"))?;
        let values = x
            .to_vec::<f32>()
            .map_err(|error| ServiceError::internal(error.to_string()))?;
        let doubled = values.iter().map(|x| 2.0 * x).collect();
        let y = Tensor::from_vec(x.shape().clone(), doubled)
            .map_err(|error| ServiceError::internal(error.to_string()))?;
        Ok(vec![InferOutput::new("y", y)])
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let model = Double(ModelMetadata::new("double", "example", tensor("x"), tensor("y")));
    let x = Tensor::from_vec(Shape::vector(3), vec![1.0f32, 2.0, 3.5])?;
    let request = InferRequest::new(ModelRef::new("double", None)?).with_input("x", x);
    model.metadata().check_request(&request)?;
    for output in model.infer(request, &CancelToken::new(None))? {
        println!(
            "{} = {:?}",
            output.name,
            output.value.as_fixed().map(Tensor::to_vec::<f32>)
        );
    }
    Ok(())
}
