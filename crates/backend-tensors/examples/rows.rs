//! Serves a tensor file as a model, and gathers rows of a tensor.
//!
//! ```sh
//! cargo run --package backend-tensors --example rows -- embeddings.safetensors words 3 8
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use backend_tensors::TensorsBackend;
use oip_model::{Backend, CancelToken, LoadContext, ModelSource};
use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let tensor = arguments.next().ok_or("which tensor?")?;
    let rows = arguments
        .map(|row| row.parse())
        .collect::<Result<Vec<i64>, _>>()?;
    let source = ModelSource::new("example", "1", &path, std::fs::read(&path)?.into());
    let model = TensorsBackend::new().load(&source, &LoadContext::default())?;
    let rows = Tensor::from_vec(Shape::vector(rows.len() as u64), rows)?;
    let request =
        InferRequest::new(ModelRef::new("example", None)?).with_input(format!("{tensor}.rows"), rows);
    model.metadata().check_request(&request)?;
    for output in model.infer(request, &CancelToken::new(None))? {
        println!(
            "{} {} {} bytes",
            output.name,
            output.value.shape(),
            output.value.raw().len()
        );
    }
    Ok(())
}
