//! Reads and checks untrusted ONNX files within bounds.
//!
//! [`decode()`] parses a file into the format's messages ([`proto`]), after computing the memory that they
//! would take. [`Signature`] describes inputs and outputs, [`structure`] checks the graph, [`external`]
//! resolves tensors in other files, and [`operators`] checks a node against a version of its operator set.
//! [`expand`] rewrites a model into fewer operators: functions are inlined, and ONNX Runtime's contrib
//! operators become ONNX's.
//!
//! [`independence`] proves that row i of every output is computed from row i of the inputs alone, so that
//! requests of several clients can run as one batch. It propagates rows through the graph without running it.
//! An unknown operator makes the proof fail, with the reason.
//!
//! This crate does not run models, and never opens files by name. Errors name the node or tensor that caused
//! them.
//!
//! ```
//! use onnx_graph::{Dim, Signature, independence, structure};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::fs::read("tests/fixtures/classifier.onnx")?; // of this crate
//! let model = onnx_graph::decode(&file.into())?;
//! structure::check(&model)?;
//! let signature = Signature::of(&model)?;
//! assert_eq!(signature.inputs[0].name, "flower");
//! assert_eq!(signature.inputs[0].dims, Some(vec![Dim::Named("batch".to_owned()), Dim::Fixed(4)]));
//!
//! let rows = independence::prove(&model, &signature.inputs)?;
//! assert!(rows.shared_inputs.is_empty());
//! # Ok(())
//! # }
//! ```

mod decode;
mod element_type;
mod error;
pub mod expand;
pub mod external;
pub mod independence;
pub mod operators;
mod other_formats;
pub mod other_runtime;
mod payload;
pub mod proto;
pub mod rewrite;
mod scan;
mod signature;
pub mod structure;
pub mod training;

pub use decode::decode;
pub use element_type::ElementType;
pub use error::{Error, ErrorKind};
pub use payload::{Data, Payload};
pub use signature::{Dim, MAX_TENSOR_BYTES, Port, Signature};
