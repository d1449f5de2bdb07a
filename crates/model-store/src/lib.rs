//! Keeps a local folder as models are somewhere else: in a bucket of S3, Google Cloud Storage or Azure, in a repository of
//! the Hugging Face Hub, or on a web server.
//!
//! A [`Mirror`] lists what a [`Location`] has, fetches what is new into a cache on disk, and shows it as a folder that any
//! server of folders can serve. [`Store`] is all that a place must be able to do.
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
//! - An object is a file of the cache only when all of it came, in the version that was listed, and is on the disk. A crash
//!   leaves temporary files, which the next process removes.
//! - A model changes all at once: its folder is built aside, of hard links to objects, and exchanged.
//! - Memory stays at four ranges of 8 MiB; disk space and the cache's limit are asked before anything is fetched.
//! - Names of objects become paths only if they lead nowhere else.
//! - Several processes may share a cache.
//!
//! # What is believed of a store
//!
//! Its list, for names and sizes; nothing else that can be checked. Where it tells a SHA-256, the bytes must have it. To trust
//! the bytes rather than the store, give the server a list of digests (`oip-server --require-digests`).

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
pub use mirror::{Mirror, MirrorOptions, Report, Scope};
pub use name::{NameProblem, ObjectName};
pub use store::{Listing, Object, OpenObject, Store};
