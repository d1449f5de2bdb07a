//! Runs models with ONNX Runtime, a shared library that is chosen when the server starts.

mod faults;
mod find;
mod first_outputs;
mod library;
mod log;
mod made_up_shapes;
mod model;
mod on_devices;
mod providers;
mod session;
mod tensors;
mod traps;
mod watch;

pub use library::OnnxRuntime;
pub(crate) use model::OrtModel;
pub use providers::{Gpu, GpuChoice, GpuChoiceError, Gpus};
pub(crate) use providers::{check_accelerators, demands_gpu, names_accelerators};
