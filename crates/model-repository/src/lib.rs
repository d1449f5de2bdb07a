//! Reads model repositories: finds and checks the models of a directory, with their versions, files and
//! digests.
//!
//! A [`Repository`] is a directory, or a single model file, that is read without a server or an engine.
//! [`Backend`](oip_model::Backend)s recognize its files, and may load them later.
//!
//! - Supported layouts: Triton's `<root>/<model>/<version>/model.onnx`, KServe's (the model file in the
//!   directory itself), a directory of versions, a single file, a directory of the Hugging Face Hub or its
//!   cache.
//! - Configurations ([`model_config`]) select versions, files and backends. If a directory cannot be used, a
//!   [`ModelError`] names what was found, and the path of the expected file.
//! - The directory is kept open, and paths are resolved from its descriptor: links do not lead out of it,
//!   unless [`Repository::open_with_links`] permits it. Only regular files are read.
//! - [`RequiredDigests`] restrict a repository to files with known SHA-256 digests.
//! - [`Snapshot`]s and [`Digest`]s show whether a model or one of its versions has changed.
//! - [`Repositories`] combines several repositories; an [`Upstream`] keeps a directory in sync with a remote
//!   source.
//!
//! ```
//! use std::sync::Arc;
//! use model_repository::{Repository, VersionContent};
//! use oip_model::{Backend, LoadContext, Model, ModelSource};
//! use oip_types::ServiceError;
//!
//! /// Recognizes ONNX models.
//! struct Onnx;
//!
//! impl Backend for Onnx {
//!     fn name(&self) -> &'static str {
//!         "onnx"
//!     }
//!
//!     fn file_names(&self) -> &[&str] {
//!         &["model.onnx"]
//!     }
//!
//!     fn load(&self, _: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
//!         Err(ServiceError::invalid("this program only lists models"))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::path::Path::new("models");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! # for version in ["1", "2"] {
//! #     std::fs::create_dir_all(path.join("digits").join(version))?;
//! #     std::fs::write(path.join("digits").join(version).join("model.onnx"), b"...")?;
//! # }
//! let repository = Repository::open(path, &[Arc::new(Onnx)], None)?;
//! let model = repository.model("digits")?.ok_or("no such model")?;
//! let written = model.configuration()?;
//! let mut files = Vec::new();
//! // Without a configuration, the highest version is the one to serve.
//! for found in model.versions(&written)? {
//!     if let VersionContent::File(file) = found.content? {
//!         files.push((found.version, model.open_model(&file, None)?.len()));
//!     }
//! }
//! assert_eq!(files, [(Some("2".to_owned()), 3)]);
//! # Ok(())
//! # }
//! ```
//!
//! `docs/models.md` describes the layouts.

mod digests;
mod error;
mod files;
mod missing_file;
mod model_directory;
mod other_frameworks;
mod repositories;
mod repository;
mod repository_error;
mod root;
mod sibling_files;
mod single_files;
mod snapshot;
mod upstream;
mod version_key;

pub use crate::{
    digests::{DigestsError, RequiredDigests},
    error::{FileError, MisnamedFile, ModelError},
    model_directory::{ModelDirectory, ModelFile, ModelVersion, VersionContent},
    repositories::{ModelNames, Repositories},
    repository::{PassedOver, Repository},
    repository_error::RepositoryError,
    sibling_files::SiblingFiles,
    snapshot::{Digest, DigestBy, FileSubset, Snapshot},
    upstream::Upstream,
    version_key::VersionKey,
};
