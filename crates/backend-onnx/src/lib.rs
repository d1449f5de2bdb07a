//! ONNX models for servers of the Open Inference Protocol: neural networks for requests of any shape, and
//! scikit-learn's operators at the speed of ONNX Runtime.
//!
//! A model that cannot be computed correctly is refused when it is loaded, with the node and the reason; the
//! page `docs/onnx.md` of the repository lists all cases. Names, datatypes and free dimensions are read from
//! the file itself. A model is prepared once for all shapes, and runs from any number of threads at once.
//!
//! [`OnnxRuntime`] is a second runtime, if its library is installed; the library is not needed to build or
//! use this crate. ONNX Runtime also runs models that the built-in runtime refuses. Both borrow aligned
//! inputs.
//!
//! The feature `nvml` detects the machine's GPUs with NVIDIA's management library and writes their metrics.
//!
//! ```
//! use backend_onnx::OnnxBackend;
//! use oip_model::{Backend, CancelToken, LoadContext, ModelSource};
//! use oip_types::{InferRequest, ModelRef};
//! use tensor_core::{Shape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = "tests/fixtures/scikit_learn/decision_tree.onnx"; // of this crate
//! let source = ModelSource::new("iris", "1", path, std::fs::read(path)?.into());
//! let model = OnnxBackend::new().load(&source, &LoadContext::default())?;
//!
//! let flower = Tensor::from_vec(Shape::new(&[1, 4])?, vec![5.1f32, 3.5, 1.4, 0.2])?;
//! let request = InferRequest::new(ModelRef::new("iris", None)?).with_input("X", flower);
//! let outputs = model.infer(request, &CancelToken::new(None))?;
//! assert_eq!(outputs[0].name, "label");
//! assert_eq!(outputs[0].value.as_fixed().unwrap().to_vec::<i64>()?, [0]);
//! # Ok(())
//! # }
//! ```

mod built_in;
mod cancelled_runs;
mod configured_dims;
mod convert;
mod dims;
mod dtype;
mod file_error;
mod model;
#[cfg(feature = "nvml")]
pub mod nvml;
mod onnx_runtime;
mod output_metadata;
mod runtime_limit;
#[cfg(test)]
#[allow(dead_code, reason = "the tests of onnx-run use more of it")]
#[path = "../../onnx-run/src/test_models.rs"]
mod test_models;
mod thread_count;

pub use model::OnnxBackend;
pub use onnx_runtime::{Gpu, GpuChoice, GpuChoiceError, Gpus, OnnxRuntime};
