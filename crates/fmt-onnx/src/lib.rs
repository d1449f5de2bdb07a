//! ONNX models as tensor files: weights, inputs, outputs and operators, without a runtime.
//!
//! Opening a model reads its structure once and skips the data, which is read only when a tensor is
//! requested. Memory therefore depends on the number of names and nodes, even for a model of gigabytes.
//! Counts and sizes in the file are checked against its length before they are used.
//!
//! - [`OnnxReader`]: reads a model's weights as a [`TensorReader`](fmt_core::TensorReader), and returns its
//!   [`Summary`].
//! - [`Onnx`]: the format, for tools that handle all formats.
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//!
//! use fmt_core::{FileSource, ReadOptions, TensorReader};
//! use fmt_onnx::OnnxReader;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = FileSource::open(Path::new("model.onnx"))?;
//! let reader = OnnxReader::open(Arc::new(source), &ReadOptions::default())?;
//! println!("{} inputs", reader.summary().inputs.len());
//! for (index, weight) in reader.entries().iter().enumerate() {
//!     println!("{}: {} bytes", weight.name, reader.tensor(index)?.bytes().len());
//! }
//! # Ok(())
//! # }
//! ```

mod dtype;
mod model;
mod reader;
mod runnable;
mod tensor;
mod wire;

pub use model::{Port, Summary};
pub use reader::{Beside, Onnx, OnnxReader};
