//! Models in Python, for servers of the Open Inference Protocol.
//!
//! A file called `model.py` with a class `Model`, or with the class `TritonPythonModel` that Triton's Python backend wants, is a
//! model; so is an estimator of scikit-learn, saved as `model.joblib` or `model.pkl`. Models of XGBoost and LightGBM can be run by the
//! packages that made them. Each runs in processes of its own
//! (`oip-worker`), of the interpreter that its configuration names or else of `python3`: with a memory limit, replaced when it
//! dies, killed when it hangs. The interpreter needs NumPy and nothing of this project: the few modules that
//! it runs besides the model are in this crate's folder `python/` and are sent to it.
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
//! A model in Python is code with the server's rights, so both backends refuse everything until they are allowed to run it:
//!
//! ```
//! use backend_python::{PythonBackend, Settings};
//! use oip_service::{Backend, LoadContext, ModelSource};
//!
//! let source = ModelSource::new("m", "1", "models/m/1/model.py", b"class Model: ...".as_slice().into());
//! let refused = PythonBackend::new(Settings::default()).load(&source, &LoadContext::default());
//! assert!(refused.err().unwrap().message().contains("--allow-python"));
//! ```
//!
//! The server's page docs/python.md has all that a model can say and do.

mod backend;
mod interpreter;
mod program;

pub use backend::{BoosterBackend, PythonBackend, SavedObjectBackend, Settings};
