//! Creates an operator from a node, computes its output shape, and runs it.
//!
//! ```sh
//! cargo run --package onnx-kernels --example operator
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use onnx_kernels::elementwise;
use onnx_tensor::{node::Node, operator::Fact, prelude::*};

fn main() -> Result<()> {
    let node = Node {
        op_type: "Exp".to_owned(),
        opset: 13,
        ..Node::default()
    };
    let exponential = elementwise::function(&node)?;
    let input = Tensor::vector(&[0.0f32, 1.0]).into_arc();
    println!(
        "{:?}",
        exponential.outputs(&Fact::of_values(std::slice::from_ref(&input)))?
    );
    println!("{:?}", exponential.run(&mut smallvec![input])?);
    Ok(())
}
