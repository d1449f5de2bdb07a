//! Runs models for the Open Inference Protocol, independent of the transport.
//!
//! [`Engine`] is the stock [`InferenceService`](oip_service::InferenceService): it finds models in a repository, loads
//! them with [`Backend`](oip_service::Backend)s, and runs them on threads of its own behind bounded queues.
//!
//! - A model that fails to load, or panics while it does, does not stop the others; its reason is kept and shown.
//! - Requests are checked against the model's metadata before anything else happens to them, and answers before they
//!   are sent.
//! - A full queue refuses at once. A request whose client is gone, or whose deadline has passed, is not run.
//! - Waiting requests run together, as far as model and requests allow ([`BatchPolicy`]); each gets exactly its own
//!   rows.
//! - A model that is known to be quick runs on the thread that its request is on ([`EngineConfig::in_place`]), where the
//!   embedding program allows that.
//! - A panic in a model is that request's error, not its batch's; the next request works.
//! - A model that hangs loses its own threads only, and says so when it has none left.
//! - Models that feed other models are served as one, each step through its own queue.
//! - Answers can be cached for equal requests ([`EngineConfig::response_cache_bytes`]).
//! - Every stage of every request is counted ([`Engine::metrics`]).
//! - A version that is loaded again serves until the new one is ready, and ends when its last request is answered.
//!
//! The engine needs no async runtime: its futures are woken by its threads, or by each other.
//!
//! ```
//! use oip_engine::{Engine, EngineConfig, Repository};
//!
//! let path = std::path::Path::new("models");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! // An empty repository, and no backend to load anything with.
//! let engine = Engine::start(Repository::open(path, &[], None)?, EngineConfig::default());
//! engine.wait_until_loaded();
//! assert!(engine.models().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For models without files, which need no repository, see [`Engine::builder`].
//!
//! # Batches
//!
//! Requests of different callers are joined where the configuration has a `max_batch_size`, or where the model says that its rows are
//! independent ([`Model::row_independence`](oip_service::Model::row_independence)): as soon as a thread is free it takes what
//! waits, up to [`EngineConfig::default_max_batch_size`] rows. When a batch fails its requests are run once more, each by
//! itself, so that only those fail that must; a bad request thus costs its neighbours a second run, but never their
//! answers.
//!
//! # The layout of a repository
//!
//! As with Triton, `<root>/<model>/<version>/model.onnx`; the highest version is served, or those selected by the version policy
//! in `<root>/<model>/config.pbtxt`. Or as with KServe: `model.onnx` directly in the folder, one model without
//! versions. Configurations are optional; [`ModelControl`] says which models are loaded, and when. The page
//! `docs/models.md` of the repository has all of it.

mod batching;
mod builder;
mod config;
mod engine;
mod load;
mod pipeline;
mod run;

pub use batching::scheduler::{BatchPolicy, PolicyError};
pub use builder::{BuildError, EngineBuilder};
pub use config::{EngineConfig, ModelControl};
pub use engine::Engine;
pub use load::{
    digests::{DigestsError, RequiredDigests},
    lifecycle::UNAVAILABLE,
    registry::ModelStatus,
    repositories::Repositories,
    repository::{PassedOver, Repository},
    repository_error::RepositoryError,
    upstream::Upstream,
};
pub use run::{
    in_place::InPlace,
    statistics::{FailureReason, Histogram, VersionMetrics},
};
