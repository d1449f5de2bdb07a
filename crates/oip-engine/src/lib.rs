//! Runs models for the Open Inference Protocol, whatever transport the requests come by.
//!
//! [`Engine`] is the stock [`InferenceService`](oip_service::InferenceService): it finds models in a repository, loads
//! them with [`Backend`](oip_service::Backend)s, and runs them on threads of its own behind bounded queues.
//!
//! - A model that fails to load, or panics while it does, does not stop the others; its reason is kept and shown.
//! - Requests are checked against the model's metadata before anything else happens to them, and answers before they
//!   are sent.
//! - A full queue refuses at once. A request whose client is gone, or whose deadline has passed, is not run.
//! - A panic in a model is that request's error; the next request works.
//!
//! The engine needs no async runtime: its futures are woken by its threads.
//!
//! ```
//! use oip_engine::{Engine, EngineConfig, Repository};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! // An empty repository, and no backend to load anything with.
//! let engine = Engine::start(Repository::scan(path, &[], None)?, EngineConfig::default());
//! engine.wait_until_loaded();
//! assert!(engine.models().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The layout of a repository
//!
//! As Triton has it, `<root>/<model>/<version>/model.onnx`; every version is served and the highest is the default.
//! Or as KServe has it: `model.onnx` right in the folder, one model without versions.

mod cache;
mod engine;
mod instances;
mod loader;
mod pipeline;
mod queue;
mod registry;
mod repository;
mod version;

pub use engine::{Engine, EngineConfig};
pub use registry::{ModelState, ModelStatus};
pub use repository::{FoundModel, Repository, RepositoryError};
