//! Mirrors models from elsewhere in a local folder: from a bucket of S3, Google Cloud Storage or Azure, a repository of the
//! Hugging Face Hub, or a web server.
//!
//! A [`Mirror`] lists the objects of a [`Location`], fetches new ones into a cache on disk, and presents them as a folder for any
//! server. [`Store`] is the interface that a new kind of location implements.
//!
//! ```no_run
//! use model_store::{Location, Mirror, MirrorOptions, Scope};
//!
//! # fn main() -> Result<(), model_store::StoreError> {
//! let location = Location::parse("s3://models/production")?;
//! let mirror = Mirror::open(&location, MirrorOptions::new("/var/cache/models"))?;
//! let folder = mirror.start(Scope::All)?;
//! // Later, as often as one likes:
//! mirror.refresh(None);
//! # Ok(())
//! # }
//! ```
//!
//! # What can be relied on
//!
//! - An object is in the cache only when all of it has arrived, in the version that was listed, and is on the disk. A crash
//!   leaves temporary files, which the next process removes.
//! - A model changes all at once: its folder is built aside, of hard links to objects, and exchanged.
//! - Memory stays at four ranges of 8 MiB; disk space and the cache's limit are checked before a fetch.
//! - Names of objects become paths only if they stay inside the folder.
//! - Several processes may share a cache.
//!
//! # Trust in a store
//!
//! Names and sizes come from the store's list. If the store has a SHA-256, the bytes must match it. To trust digests rather than
//! the store, give the server a list of them (`oip-server --require-digests`).
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

mod cache;
mod cloud;
mod download;
mod error;
mod hub;
mod location;
mod mirror;
mod name;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod view;
mod web;

pub use cloud::CloudStore;
pub use error::StoreError;
pub use location::Location;
pub use mirror::{LeftOut, Mirror, MirrorOptions, Report, Scope};
pub use name::{NameProblem, ObjectName};
pub use store::{Listing, Object, OpenObject, Store};
