//! Mirrors remote models in a local directory: from an S3, Google Cloud Storage or Azure bucket, a Hugging
//! Face Hub repository, or a web server.
//!
//! A [`Mirror`] lists the objects of a [`Location`], fetches new ones into a cache on disk, and presents them
//! as a directory for any server. Implement [`Store`] to support another kind of location.
//!
//! ```no_run
//! use model_store::{Location, Mirror, MirrorOptions, Scope};
//!
//! # fn main() -> Result<(), model_store::StoreError> {
//! let location = Location::parse("s3://models/production")?;
//! let mirror = Mirror::open(&location, MirrorOptions::new("/var/cache/models"))?;
//! let folder = mirror.start(Scope::All)?;
//! // Call this again whenever the location may have changed:
//! mirror.refresh(None);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - An object is in the cache only if it is complete, has the listed version, and is synced to disk. A crash
//!   leaves temporary files, which the next process removes.
//! - A model changes atomically: its new directory is built from hard links to objects, and then swapped in.
//! - Memory is bounded by four ranges of 8 MiB; disk space and the cache's limit are checked before a fetch.
//! - Names of objects become paths only if they stay inside the directory.
//! - Several processes may share a cache.
//!
//! # Trust in a store
//!
//! Names and sizes come from the store's list. If the store has a SHA-256, the bytes must match it. To trust
//! digests rather than the store, give the server a list of them (`oip-server --require-digests`).
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

mod cache;
mod cloud;
mod download;
mod error;
mod hub;
mod location;
mod mirror;
mod mirror_options;
mod name;
mod progress;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod view;
mod web;

pub use cloud::CloudStore;
pub use error::StoreError;
pub use location::Location;
pub use mirror::Mirror;
pub use mirror_options::{LeftOut, MirrorOptions, Report, Scope};
pub use name::{NameProblem, ObjectName};
pub use store::{Listing, Object, OpenObject, Store};
