//! Runs a model file and prints its outputs. All inputs are zeros; free dimensions are 2.
//!
//! ```sh
//! cargo run --package onnx-run --example run -- [MODEL]
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{env, fs};

use onnx_run::{Session, computed};
use onnx_tensor::prelude::*;

/// An FP32 model of `softmax(x w + b)` with a free batch.
const CLASSIFIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/classifier.onnx");

fn main() -> Result<()> {
    let path = env::args().nth(1).unwrap_or_else(|| CLASSIFIER.to_owned());
    let session = Session::read(&fs::read(path)?.into())?;
    let inputs = session.signature().inputs.iter().map(|input| {
        let element_type = computed(input.element_type).context("an input of an unsupported type")?;
        let dims = input.dims.iter().flatten();
        let shape: Vec<usize> = dims.map(|dim| dim.fixed().unwrap_or(2) as usize).collect();
        Tensor::zero_of(element_type, &shape)
    });
    let outputs = session.run(inputs.collect::<Result<Vec<_>>>()?)?;
    for (output, value) in session.signature().outputs.iter().zip(outputs) {
        println!("{}: {value:?}", output.name);
    }
    Ok(())
}
