//! Runs models for the Open Inference Protocol, independent of the transport.
//!
//! [`Engine`] is the stock [`InferenceService`](oip_service::InferenceService): it finds models in a
//! repository, loads them with [`Backend`](oip_model::Backend)s, and runs them on its own threads behind
//! bounded queues.
//!
//! - A model that fails or panics while loading does not affect other models; the reason is recorded and
//!   reported.
//! - Requests are checked against the model's metadata first, and so are responses before they are sent.
//! - A full queue refuses requests at once. A request whose client disconnected, or whose deadline has
//!   passed, is not run.
//! - Waiting requests are batched if the model and the requests allow it ([`BatchPolicy`]); each response has
//!   exactly its request's rows.
//! - A model that is known to be quick runs on its caller's thread ([`EngineConfig::in_place`]), if the
//!   embedding program enables that.
//! - A panic in a model fails only the request that caused it, not its batch; the next request works.
//! - A model that hangs blocks only its own threads, and becomes unavailable when none is left.
//! - Pipelines of models are served as one model; each step goes through its own queue.
//! - Responses to identical requests can be cached ([`EngineConfig::response_cache_bytes`]).
//! - Every stage of every request is measured ([`Engine::metrics`]).
//! - When a version is reloaded, the old one serves until the new one is ready, and ends after its last
//!   request.
//!
//! The engine needs no async runtime: its threads wake its futures.
//!
//! ```
//! use oip_engine::{Engine, EngineConfig, Repository};
//!
//! let path = std::path::Path::new("models");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! // An empty repository without backends.
//! let engine = Engine::start(Repository::open(path, &[], None)?, EngineConfig::default());
//! engine.wait_until_loaded();
//! assert!(engine.models().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Engine::builder`] serves models without files.
//!
//! # Batches
//!
//! Requests of different callers are batched together if the configuration has a `max_batch_size`, or if the
//! model declares its rows independent ([`Capabilities`](oip_model::Capabilities::row_independence)). As
//! soon as a thread is free, it takes the waiting requests, up to [`EngineConfig::default_max_batch_size`]
//! rows. If a batch fails, each of its requests is run again alone, so that only the bad ones fail. A bad
//! request costs the others in its batch a second run, but never their responses.
//!
//! # Repository layout
//!
//! As in Triton, `<root>/<model>/<version>/model.onnx`: the highest version is served, or those selected by
//! the version policy in `<root>/<model>/config.pbtxt`. As in KServe, a `model.onnx` in the model's directory
//! itself is one model without versions. Configurations are optional; [`ModelControl`] selects which models
//! are loaded, and when. `docs/models.md` has the details.

mod batching;
mod builder;
mod config;
mod engine;
mod generation;
mod infer_result;
mod load;
mod metric_families;
mod pipeline;
mod run;
mod statistics;
mod versions;

pub use batching::scheduler::{BatchPolicy, PolicyError};
pub use builder::{BuildError, EngineBuilder};
pub use config::{EngineConfig, ModelControl};
pub use engine::Engine;
pub use load::lifecycle::UNAVAILABLE;
// Argument types of `Engine::start`.
pub use model_repository::{Repositories, Repository, RepositoryError};
pub use run::in_place::InPlace;
pub use statistics::{FailureReason, Histogram, VersionMetrics};
pub use versions::status::ModelStatus;
