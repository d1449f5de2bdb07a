//! ONNX models as tensor files: weights, inputs, outputs and operators, without a runtime.
//!
//! Opening scans a model once. Weights are read only when they are requested, so the time to open even a
//! model of gigabytes depends only on its names and nodes. Counts and sizes that a file claims are checked
//! against the file before they are used.
//!
//! - [`OnnxReader`]: reads a model's weights as a [`TensorReader`](fmt_core::TensorReader), and its
//!   [`Summary`].
//! - [`Onnx`]: the format, for tools.
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
pub use reader::{Onnx, OnnxReader, OpenExternal};
