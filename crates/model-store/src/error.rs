//! Why models cannot be fetched: typed; texts are made once, here.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why models cannot be fetched, or not kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A URL that cannot be used.
    #[error("the location {found}: {why}; expected {expected}")]
    Location {
        /// The URL, without its query.
        found: String,
        /// What is wrong with it.
        why: String,
        /// The forms that are known.
        expected: &'static str,
    },
    /// The store's settings, from the environment, cannot be used.
    #[error("the settings for {url} (environment) cannot be used: {why}")]
    Settings {
        /// Where the models are.
        url: String,
        /// What the store's client says.
        why: String,
    },
    /// There is no bucket, repository or file of the name.
    #[error("{url}: {what} does not exist; check the URL and which region or endpoint is set ({why})")]
    NotFound {
        /// Where the models are.
        url: String,
        /// What was asked for.
        what: String,
        /// What the store says.
        why: String,
    },
    /// A location without a single model's file.
    #[error("there is nothing at {url}: no object has a name that begins so")]
    Empty {
        /// Where the models should be.
        url: String,
    },
    /// The store requires authentication, or denies access.
    #[error("{url}: access to {what} is refused; {hint} ({why})")]
    Denied {
        /// Where the models are.
        url: String,
        /// What was asked for.
        what: String,
        /// Where credentials come from.
        hint: &'static str,
        /// What the store says.
        why: String,
    },
    /// The store does not answer, or not in a way that makes sense.
    #[error("{url}: {what} cannot be read: {why}")]
    Unavailable {
        /// Where the models are.
        url: String,
        /// What was asked for.
        what: String,
        /// The error in place of a response.
        why: String,
    },
    /// An object is another one now than the one that was listed.
    #[error(
        "{name} changed in its store while it was fetched; the next synchronisation fetches the new file"
    )]
    Changed {
        /// The object.
        name: String,
    },
    /// Fewer bytes came than were announced, or more.
    #[error("{name} has {expected} bytes by the store's list, but {found} came")]
    Truncated {
        /// The object.
        name: String,
        /// As listed.
        expected: u64,
        /// As received.
        found: u64,
    },
    /// The bytes are not those that the store promised.
    #[error("{name}: its store says that it has the SHA-256 {expected}, but the bytes have {found}")]
    Digest {
        /// The object.
        name: String,
        /// As listed.
        expected: String,
        /// Of what came.
        found: String,
    },
    /// An object's name would lead out of the folder, or cannot be a path.
    #[error("the object '{}' cannot be a file here: its name {why}; rename it in its store", .name.escape_debug())]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two objects cannot both be files.
    #[error("'{name}' is both an object and a folder of others; one of them must go")]
    Conflict {
        /// The name.
        name: String,
    },
    /// More objects than any repository needs.
    #[error("{url} has more than {limit} objects; a longer prefix would name fewer")]
    TooMany {
        /// Where the models are.
        url: String,
        /// How many are taken.
        limit: usize,
    },
    /// The cache is bounded, and this does not fit.
    #[error(
        "{what} needs {needed} bytes, but the cache {} may hold {limit}, of which {pinned} are in use; raise \
         --repository-cache-limit, or keep fewer models in the repository", .cache.display()
    )]
    CacheFull {
        /// What was to be fetched.
        what: String,
        /// Bytes that were to be fetched.
        needed: u64,
        /// The cache's folder.
        cache: PathBuf,
        /// Bytes it may hold.
        limit: u64,
        /// Bytes that cannot be given up.
        pinned: u64,
    },
    /// The disk has no room.
    #[error(
        "{what} needs {needed} bytes, but the disk of the cache {} has {free} left; free some, or name a folder on another \
         disk by --repository-cache", .cache.display()
    )]
    DiskFull {
        /// What was to be fetched.
        what: String,
        /// Bytes that were to be fetched.
        needed: u64,
        /// The cache's folder.
        cache: PathBuf,
        /// Bytes that are left.
        free: u64,
    },
    /// The cache's folder belongs to something else.
    #[error(
        "{} is not empty and not a cache of this program (no CACHEDIR.TAG of its own); name another folder by \
         --repository-cache", .path.display()
    )]
    NotACache {
        /// The folder.
        path: PathBuf,
    },
    /// The cache cannot be read or written.
    #[error("{}: {doing}: {source}", .path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A model has become a repository, or the other way round.
    #[error("{url} was {before} and is {now} now; start the server again to serve that")]
    Layout {
        /// Where the models are.
        url: String,
        /// What it was.
        before: &'static str,
        /// What it is.
        now: &'static str,
    },
}

impl StoreError {
    /// An error of the cache's folder.
    pub(crate) fn cache(path: impl Into<PathBuf>, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Cache { path, doing, source }
    }

    /// Whether what failed may be tried again at once, with a new list.
    pub(crate) fn is_race(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Truncated { .. })
    }

    /// Whether it is about the store rather than about one object or the cache.
    pub(crate) fn is_of_store(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::Empty { .. } | Self::Denied { .. } | Self::Unavailable { .. }
        )
    }
}
