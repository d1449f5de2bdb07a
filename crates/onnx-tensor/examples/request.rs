//! Computes the softmax of a request's bytes, and returns the bytes of the response, without a copy.
//!
//! ```sh
//! cargo run --package onnx-tensor --example request
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use onnx_tensor::prelude::*;

fn main() -> Result<()> {
    let request = Bytes::from_owner([0u8, 0, 0, 0, 0, 0, 128, 63, 0, 0, 0, 64]);
    let input = Tensor::from_bytes(ElementType::F32, &[1, 3], request)?;
    println!("{input:?}");
    let output = softmax(&input)?;
    println!("{output:?}");
    println!("{:?}", output.into_bytes()?);
    Ok(())
}

fn softmax(input: &Tensor) -> Result<Tensor> {
    let powers: Vec<f32> = input.as_slice::<f32>()?.iter().map(|x| x.exp()).collect();
    let sum: f32 = powers.iter().sum();
    Tensor::from_vec(input.shape(), powers.iter().map(|power| power / sum).collect())
}
