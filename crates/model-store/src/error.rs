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
        /// The problem.
        why: String,
        /// The supported forms.
        expected: &'static str,
    },
    /// The store's settings in the environment are invalid.
    #[error("the settings for {url} (environment) cannot be used: {why}")]
    Settings {
        /// The location of the models.
        url: String,
        /// The client library's message.
        why: String,
    },
    /// The bucket, repository or file does not exist.
    #[error("{url}: {what} does not exist; check the URL and which region or endpoint is set ({why})")]
    NotFound {
        /// The location of the models.
        url: String,
        /// The requested object.
        what: String,
        /// The store's message.
        why: String,
    },
    /// The location contains no model files.
    #[error("there is nothing at {url}: no object has a name that begins so")]
    Empty {
        /// The location.
        url: String,
    },
    /// The store requires authentication, or denies access.
    #[error("{url}: access to {what} is refused; {hint} ({why})")]
    Denied {
        /// The location of the models.
        url: String,
        /// The requested object.
        what: String,
        /// A text that tells where credentials are configured.
        hint: &'static str,
        /// The store's message.
        why: String,
    },
    /// The store does not respond, or its response is invalid.
    #[error("{url}: {what} cannot be read: {why}")]
    Unavailable {
        /// The location of the models.
        url: String,
        /// The requested object.
        what: String,
        /// The error.
        why: String,
    },
    /// An object changed after it was listed.
    #[error(
        "{name} changed in its store while it was fetched; the next synchronisation fetches the new file"
    )]
    Changed {
        /// The object.
        name: String,
    },
    /// The number of bytes differs from the announced one.
    #[error("{name} has {expected} bytes by the store's list, but {found} came")]
    Truncated {
        /// The object.
        name: String,
        /// The listed size.
        expected: u64,
        /// The received size.
        found: u64,
    },
    /// The bytes do not match the store's digest.
    #[error("{name}: its store says that it has the SHA-256 {expected}, but the bytes have {found}")]
    Digest {
        /// The object.
        name: String,
        /// The listed digest.
        expected: String,
        /// The digest of the received bytes.
        found: String,
    },
    /// An object's name would escape the directory, or is not a valid path.
    #[error("the object '{}' cannot be a file here: its name {why}; rename it in its store", .name.escape_debug())]
    Name {
        /// The name.
        name: String,
        /// The problem.
        why: String,
    },
    /// Two objects exclude each other: one's name is a directory of the other.
    #[error("'{name}' is both an object and a folder of others; one of them must go")]
    Conflict {
        /// The name.
        name: String,
    },
    /// The location has too many objects.
    #[error("{url} has more than {limit} objects; a longer prefix would name fewer")]
    TooMany {
        /// The location of the models.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// The object does not fit into the cache's limit.
    #[error(
        "{what} needs {needed} bytes, but the cache {} may hold {limit}, of which {pinned} are in use; raise \
         --repository-cache-limit, or keep fewer models in the repository", .cache.display()
    )]
    CacheFull {
        /// The object or model.
        what: String,
        /// Its size in bytes.
        needed: u64,
        /// The cache's directory.
        cache: PathBuf,
        /// The limit in bytes.
        limit: u64,
        /// Bytes that are in use and cannot be evicted.
        pinned: u64,
    },
    /// The disk is full.
    #[error(
        "{what} needs {needed} bytes, but the disk of the cache {} has {free} left; free some, or name a folder on another \
         disk by --repository-cache", .cache.display()
    )]
    DiskFull {
        /// The object or model.
        what: String,
        /// Its size in bytes.
        needed: u64,
        /// The cache's directory.
        cache: PathBuf,
        /// Free bytes.
        free: u64,
    },
    /// The cache's directory is used for something else.
    #[error(
        "{} is not empty and not a cache of this program (no CACHEDIR.TAG of its own); name another folder by \
         --repository-cache", .path.display()
    )]
    NotACache {
        /// The directory.
        path: PathBuf,
    },
    /// Reading or writing the cache failed.
    #[error("{}: {doing}: {source}", .path.display())]
    Cache {
        /// The file or directory.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A single model became a repository, or the reverse.
    #[error("{url} was {before} and is {now} now; start the server again to serve that")]
    Layout {
        /// The location of the models.
        url: String,
        /// The previous kind.
        before: &'static str,
        /// The current kind.
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
