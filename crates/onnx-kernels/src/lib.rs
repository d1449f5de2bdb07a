//! CPU kernels for ONNX operators, for tensors of any shape. `onnx-layers` has the kernels of layers: matrix
//! products, convolutions, pools, normalizations, recurrent layers, attention, quantization.
//!
//! Each module is one of ONNX's operator families; each file has one operator, or a few that share an
//! algorithm. A function such as [`shape::reshape`] builds an operator from a node's attributes: a
//! [`Compute`](onnx_tensor::operator::Compute). An operator infers the types and dimensions of its outputs
//! before it computes them, so that the caller can reserve their memory, and checks the deadline while it
//! runs. It depends on neither graphs nor files. Results equal ONNX Runtime's: integers wrap, NaN propagates,
//! and FP32 sums may differ in their last bits.
//!
//! Inner loops are vectorized at run time by `pulp`, without `unsafe`.
//!
//! ```
//! use onnx_kernels::elementwise;
//! use onnx_tensor::{node::Node, prelude::*};
//!
//! let node = Node { op_type: "Neg".to_owned(), opset: 13, ..Node::default() };
//! let negation = elementwise::function(&node)?;
//! let outputs = negation.run(&mut smallvec![Tensor::vector(&[1.0f32, -2.0]).into_arc()])?;
//! assert_eq!(*outputs[0], Tensor::vector(&[-1.0f32, 2.0]));
//! # Ok::<(), Error>(())
//! ```
#![allow(
    clippy::missing_errors_doc,
    reason = "makers of operators fail alike: with what is wrong with the node"
)]

pub mod elementwise;
pub mod gather;
pub mod image;
pub(crate) mod least_work;
pub mod random;
pub mod reduce;
#[cfg(test)]
mod same_bits;
pub mod shape;
pub mod signal;
