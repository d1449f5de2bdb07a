//! Runs ONNX models on the CPU: a [`Session`] prepares a file once and runs it for inputs of any shape.
//!
//! ```
//! use onnx_run::Session;
//! use onnx_tensor::prelude::*;
//!
//! // softmax(x w + b), with a free batch; a file of this crate.
//! let session = Session::read(&std::fs::read("examples/classifier.onnx")?.into())?;
//! for rows in [1, 3] {
//!     let x = Tensor::from_vec(&[rows, 2], vec![0.5f32; rows * 2])?;
//!     let outputs = session.run([x])?;
//!     assert_eq!(outputs[0].shape(), [rows, 3]);
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! - **Any shape.** Nothing is compiled for a shape: a graph is a list of nodes, which run one after another
//!   for the shapes of the inputs. Preparation folds constants, fuses nodes and packs weights.
//! - **Safe Rust**, except for the lines of `onnx-gemm` that call AVX-512 VNNI instructions. An invalid file
//!   or input is an error, not a panic.
//! - **Bounded memory.** Sizes are computed before values are allocated. A value takes at most 4 GiB, and the
//!   values of all runs in the process take at most 3/8 of its memory; a run that needs more fails with
//!   [`RunErrorKind::NoMemory`].
//! - **Deadlines.** [`Session::run_until`] checks its [`Cancellation`](onnx_tensor::cancelling::Cancellation)
//!   between nodes, within long operators and in every iteration of a loop.
//!   [`time_limit::until`](onnx_tensor::time_limit::until) limits the time of the preparation.
//! - **Refusals instead of wrong results.** A model that would not be computed correctly is refused when it
//!   is prepared, with the node and the reason.
//!
//! Inputs and outputs are in the order of [`Session::signature`]. Any number of threads can run a session at
//! once. Each run starts on the thread that calls it, and runs share only constants.
//!
//! Not supported: GPUs, training, arithmetic in BF16 and FP8, sequences and maps as inputs or outputs, and
//! most operators of `com.microsoft`. External data must be loaded into the model first, with
//! `onnx_graph::external`.

#[cfg(test)]
mod asked_memory;
mod element_type;
mod error;
#[cfg(test)]
mod extreme_numbers;
#[cfg(test)]
#[path = "../../backend-onnx/tests/it/fixtures.rs"]
mod fixtures;
mod invalid_node;
mod lower;
mod lowered;
mod operators;
mod outcome;
mod steps;
#[cfg(test)]
mod test_models;

pub use element_type::computed;
pub use error::{RunError, RunErrorKind};
pub use steps::Session;
