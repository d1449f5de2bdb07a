//! Models run by ONNX Runtime, a library that the operator names when the server starts.

mod fatal;
mod find;
mod first_answer;
mod library;
mod model;
mod session;
mod tensors;
mod watch;

pub use library::OnnxRuntime;
pub(crate) use model::OrtModel;
