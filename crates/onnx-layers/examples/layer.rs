//! Creates a convolution from a node, packs its weights, and runs it.
//!
//! ```sh
//! cargo run --package onnx-layers --example layer
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use onnx_layers::conv;
use onnx_tensor::{node::Node, operator::Fact, packs::Packs, prelude::*};

fn main() -> Result<()> {
    let node = Node {
        op_type: "Conv".to_owned(),
        opset: 11,
        ..Node::default()
    };
    let mut convolution = conv::conv(&node)?;
    // One filter of 2 x 2 weights, for images of one channel.
    let weights = Tensor::from_shape(&[1, 1, 2, 2], &[1.0f32, 0.0, 0.0, -1.0])?.into_arc();
    convolution.take_over(&[None, Some(weights.clone())], &mut Packs::beside(16))?;
    let pixels: Vec<f32> = (0..9u8).map(f32::from).collect();
    let image = Tensor::from_shape(&[1, 1, 3, 3], &pixels)?.into_arc();
    let mut inputs: ShortVec<Arc<Tensor>> = smallvec![image, weights];
    println!("{:?}", convolution.outputs(&Fact::of_values(&inputs))?);
    println!("{:?}", convolution.run(&mut inputs)?);
    Ok(())
}
