//! ONNX files, read and checked within bounds, for whatever runs them.
//!
//! [`decode()`] reads an untrusted file into the messages of the format ([`proto`]), after it has measured what they would take in memory.
//! [`Signature`] has its inputs and outputs, [`structure`] checks that the graph holds together, [`external`] gives tensors their contents
//! from other files, and [`operators`] knows what a node may have in a version of its operator set. [`expand`] writes a model in fewer
//! operators: functions and ONNX Runtime's own operators become ONNX's.
//!
//! [`independence`] proves that row i of every output is computed from row i of the inputs alone, so that requests of many clients can
//! run as one batch. It follows rows through the graph without running it; what it does not know counts as a no, with the reason.
//!
//! Nothing here computes a model, and file names are never opened. Errors name the node or tensor that they are about.
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
