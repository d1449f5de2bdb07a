//! Creates an operator from the attributes of a node, and runs it for two batch sizes.
//!
//! ```sh
//! cargo run --package onnx-ml --example scaler
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use onnx_tensor::{
    node::{Attribute, Node},
    prelude::*,
};

fn main() -> Result<()> {
    let floats = |name: &str, floats: &[f32]| Attribute {
        name: name.to_owned(),
        floats: floats.to_vec(),
        ..Attribute::default()
    };
    let node = Node {
        op_type: "ai.onnx.ml/Scaler".to_owned(),
        opset: 1,
        attribute: vec![floats("offset", &[1.0, 2.0]), floats("scale", &[10.0, 100.0])],
        ..Node::default()
    };
    let scaler = onnx_ml::scaler(&node)?;
    for rows in [
        Tensor::matrix(&[[1.0f32, 3.0]]),
        Tensor::matrix(&[[2.0f32, 2.0], [3.0, 4.0]]),
    ] {
        println!("{:?}", scaler.run(&mut smallvec![rows.into_arc()])?);
    }
    Ok(())
}
