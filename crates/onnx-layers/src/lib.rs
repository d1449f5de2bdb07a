//! Layers of neural networks for the CPU: matrix products, convolutions, pools, normalizations, recurrent
//! layers, attention and quantization, as ONNX operators for tensors of any shape.
//!
//! Each module contains a family of operators, and each file one operator or a few that share an algorithm. A
//! function such as [`conv::conv`] builds an operator, a [`Compute`](onnx_tensor::operator::Compute), from a
//! node's attributes. The functions of `onnx-kernels`, which contains ONNX's other operators, do the same.
//! Constant weights are packed once ([`take_over`](onnx_tensor::operator::Compute::take_over)), and the
//! activation that follows a convolution is applied to its results while they are in the cache
//! ([`follow`](onnx_tensor::operator::Compute::follow)).
//!
//! `onnx-gemm` multiplies matrices. Large results are computed in parts on several threads; sums are never
//! split, so results are bit-identical for any number of threads.
//!
//! ```
//! use onnx_layers::matmul;
//! use onnx_tensor::{node::Node, packs::Packs, prelude::*};
//!
//! let node = Node { op_type: "MatMul".to_owned(), opset: 13, ..Node::default() };
//! let mut product = matmul::mat_mul(&node)?;
//! let weights = Tensor::matrix(&[[1.0f32, 2.0], [3.0, 4.0]]).into_arc();
//! // A model with 16 bytes of constants.
//! product.take_over(&[None, Some(weights.clone())], &mut Packs::beside(16))?;
//! let rows = Tensor::matrix(&[[1.0f32, 1.0], [10.0, 1.0]]).into_arc();
//! let outputs = product.run(&mut smallvec![rows, weights])?;
//! assert_eq!(*outputs[0], Tensor::matrix(&[[4.0f32, 6.0], [13.0, 24.0]]));
//! # Ok::<(), Error>(())
//! ```
#![allow(
    clippy::missing_errors_doc,
    reason = "makers of operators fail alike: with what is wrong with the node"
)]

pub mod attention;
pub mod conv;
pub(crate) mod least_work;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod quant;
pub mod rnn;
#[cfg(test)]
mod same_bits;
pub(crate) mod split_products;
