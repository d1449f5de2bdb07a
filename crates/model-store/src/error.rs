//! Typed errors with their messages.

use std::{io, path::PathBuf};

use thiserror::Error;

/// The error when models cannot be fetched or cached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The URL is invalid.
    #[error("the location {found}: {why}; expected {expected}")]
    Location {
        /// The URL, without its query.
        found: String,
        /// The problem, as a clause of the message.
        why: String,
        /// The forms of URLs that are supported.
        expected: &'static str,
    },
    /// The store's settings in the environment are invalid.
    #[error("the settings for {url} (environment) cannot be used: {why}")]
    Settings {
        /// URL of the location of the models.
        url: String,
        /// Error message of the client library.
        why: String,
    },
    /// The bucket, repository or file does not exist.
    #[error("{url}: {what} does not exist; check the URL and which region or endpoint is set ({why})")]
    NotFound {
        /// URL of the location of the models.
        url: String,
        /// The object or list that was requested.
        what: String,
        /// Error message of the store.
        why: String,
    },
    /// The location contains no model files.
    #[error("there is nothing at {url}: no object has this prefix")]
    Empty {
        /// URL of the location that is empty.
        url: String,
    },
    /// The store requires authentication, or denies access.
    #[error("{url}: access to {what} is refused; {hint} ({why})")]
    Denied {
        /// URL of the location of the models.
        url: String,
        /// The object or list that was requested.
        what: String,
        /// Advice on where to configure credentials.
        hint: &'static str,
        /// Error message of the store.
        why: String,
    },
    /// The store does not respond, or its response is invalid.
    #[error("{url}: {what} cannot be read: {why}")]
    Unavailable {
        /// URL of the location of the models.
        url: String,
        /// The object or list that was requested.
        what: String,
        /// Error message of the client library or the store.
        why: String,
    },
    /// An object changed after it was listed.
    #[error(
        "{name} changed in its store while it was fetched; the next synchronisation fetches the new file"
    )]
    Changed {
        /// Name of the object.
        name: String,
    },
    /// The number of bytes differs from the announced one.
    #[error("the store lists {name} with {expected} bytes, but sent {found}")]
    Truncated {
        /// Name of the object.
        name: String,
        /// Size in the list, in bytes.
        expected: u64,
        /// Number of bytes received.
        found: u64,
    },
    /// The bytes do not match the store's digest.
    #[error("{name}: its store gives the SHA-256 {expected}, but its bytes have {found}")]
    Digest {
        /// Name of the object.
        name: String,
        /// SHA-256 that the store promises.
        expected: String,
        /// SHA-256 of the received bytes.
        found: String,
    },
    /// An object's name would escape the directory, or is not a valid path.
    #[error("the object '{}' cannot be a file here: its name {why}; rename it in its store", .name.escape_debug())]
    Name {
        /// The offending name of an object.
        name: String,
        /// The problem, as a clause of the message.
        why: String,
    },
    /// Two objects cannot both be stored: the name of one is a directory in the name of the other.
    #[error("'{name}' is both an object and a directory of others; remove one of them")]
    Conflict {
        /// The offending name of an object.
        name: String,
    },
    /// The location has too many objects.
    #[error("{url} has more than {limit} objects; a longer prefix would name fewer")]
    TooMany {
        /// URL of the location of the models.
        url: String,
        /// Maximum number of objects.
        limit: usize,
    },
    /// The object does not fit into the cache's limit.
    #[error(
        "{what} needs {needed} bytes, but the cache {} may hold {limit}, of which {pinned} are in use; raise \
         --repository-cache-limit, or keep fewer models in the repository", .cache.display()
    )]
    CacheFull {
        /// Name of the object or model that needs space.
        what: String,
        /// Number of bytes that the object or model needs.
        needed: u64,
        /// The cache's directory.
        cache: PathBuf,
        /// Maximum size of the cache in bytes.
        limit: u64,
        /// Number of bytes in the cache that are in use and cannot be evicted.
        pinned: u64,
    },
    /// The disk is full.
    #[error(
        "{what} needs {needed} bytes, but the disk of the cache {} has {free} left; free some, or name a \
         directory on another \
         disk by --repository-cache", .cache.display()
    )]
    DiskFull {
        /// Name of the object or model that needs space.
        what: String,
        /// Number of bytes that the object or model needs.
        needed: u64,
        /// The cache's directory.
        cache: PathBuf,
        /// Number of free bytes on the disk.
        free: u64,
    },
    /// The cache's directory is used for something else.
    #[error(
        "{} is not empty and not a cache of this program (no CACHEDIR.TAG of its own); name another \
         directory by \
         --repository-cache", .path.display()
    )]
    NotACache {
        /// Path of the directory.
        path: PathBuf,
    },
    /// Reading or writing the cache failed.
    #[error("{}: {doing}: {source}", .path.display())]
    Cache {
        /// Path of the file or directory.
        path: PathBuf,
        /// The operation that failed, for the message.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A single model became a repository, or vice versa.
    #[error("{url} was {before} and is now {now}; restart the server to serve it")]
    Layout {
        /// URL of the location of the models.
        url: String,
        /// Kind of the location before the change.
        before: &'static str,
        /// Kind of the location after the change.
        now: &'static str,
    },
}

impl StoreError {
    /// Creates an error about the cache directory.
    pub(crate) fn cache(path: impl Into<PathBuf>, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Cache { path, doing, source }
    }

    /// Returns whether the operation may be retried at once with a fresh list.
    pub(crate) fn is_race(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Truncated { .. })
    }

    /// Returns whether the error concerns the store as a whole rather than one object or the cache.
    pub(crate) fn is_of_store(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::Empty { .. } | Self::Denied { .. } | Self::Unavailable { .. }
        )
    }
}
