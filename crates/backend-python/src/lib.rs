//! Models in Python, for servers of the Open Inference Protocol.
//!
//! A file named `model.py` with a class `Model`, or with the class `TritonPythonModel` of Triton's Python
//! backend, is a model; so is a scikit-learn estimator saved as `model.joblib` or `model.pkl`. Models of
//! XGBoost and LightGBM can run in the packages that wrote them. Each model runs in separate processes
//! (`oip-worker`), with the interpreter in its configuration or else `python3`. A process has a memory limit,
//! is replaced when it dies, and is killed when it hangs. The interpreter needs NumPy and nothing from this
//! project: the few modules that it runs in addition to the model are in this crate's directory `python/` and
//! are sent to it.
//!
//! ```python
//! import numpy as np
//!
//! class Model:
//!     inputs = {"x": ("FP32", [-1, 16])}
//!     outputs = {"y": ("FP32", [-1])}
//!
//!     def infer(self, x):
//!         return {"y": x.sum(axis=1)}
//! ```
//!
//! A Python model is code with the server's permissions, so the backends refuse to run Python until the
//! settings allow it:
//!
//! ```
//! use backend_python::{PythonBackend, Settings};
//! use oip_model::{Backend, LoadContext, ModelSource};
//!
//! let source = ModelSource::new("m", "1", "models/m/1/model.py", b"class Model: ...".as_slice().into());
//! let refused = PythonBackend::new(Settings::default()).load(&source, &LoadContext::default());
//! assert!(refused.err().unwrap().message().contains("--allow-python"));
//! ```
//!
//! The server's page docs/python.md describes everything that a model can define.

mod backend;
mod interpreter;
mod program;

pub use backend::{BoosterBackend, PythonBackend, SavedObjectBackend, Settings};
