//! Reads an inference request in JSON from standard input and checks it against a model, as a server would.
//!
//! ```sh
//! echo '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}' |
//!     cargo run --package oip-types --example request
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::io::Read;

use oip_types::{DataType, ModelMetadata, ModelRef, RequestLimits, TensorMetadata, rest::decode_request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let metadata = ModelMetadata::new("m", "example", tensor("x"), tensor("y"));
    let decoded = decode_request(
        ModelRef::new("m", None)?,
        &body.into(),
        None,
        &RequestLimits::default(),
    )?;
    metadata.check_request(&decoded.request)?;
    println!("a good request with {} inputs", decoded.request.inputs.len());
    Ok(())
}
