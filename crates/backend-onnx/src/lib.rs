//! ONNX models.

mod convert;
mod dtype;
mod foresee;
mod lower;
mod ml;
mod model;
mod ops;
mod payload;
mod plan;
mod proto;
mod scan;
mod signature;

pub use model::OnnxBackend;
pub use signature::{Dim, Port, Signature};
