//! Declares the inputs and outputs of a model and runs the model, which is plain blocking code.
//!
//! ```sh
//! cargo run --package oip-model --example model
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use oip_model::{Call, CancelToken, Model, Outcome};
use oip_types::{
    DataType, InferRequest, InferResponse, ModelMetadata, ModelRef, ServiceError, TensorMetadata,
};
use tensor_core::Tensor;

struct Double(ModelMetadata);

impl Model for Double {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let x = call.request.take::<f32>("x")?;
        Ok(Outcome::output("y", x.map(|x| 2.0 * x)))
    }
}

fn main() -> Result<(), ServiceError> {
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let model: Box<dyn Model> = Box::new(Double(ModelMetadata::new(
        "double",
        "example",
        tensor("x"),
        tensor("y"),
    )));
    let x = Tensor::from_slice([3], &[1.0f32, 2.0, 3.5])?;
    let request = InferRequest::new(ModelRef::new("double", None)?).with_input("x", x);
    let outputs = model.infer(request, &CancelToken::new(None))?;
    println!("y = {:?}", InferResponse::new("double", outputs).get::<f32>("y")?);
    Ok(())
}
