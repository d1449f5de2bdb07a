//! ONNX models as tensor files: weights, inputs, outputs and operators, without a runtime.
//!
//! A model is walked over once; weights stay where they are until they are read, so that a model of gigabytes costs what
//! its names and nodes cost. Counts and sizes that a file claims are checked against the file before they are used.
//!
//! - [`OnnxReader`]: a model's weights as a [`TensorReader`](fmt_core::TensorReader), and its [`Summary`].
//! - [`Onnx`]: the format, for tools.

mod dtype;
mod model;
mod reader;
mod runnable;
mod tensor;
mod wire;

pub use model::{Port, Summary};
pub use reader::{Beside, Onnx, OnnxReader};
