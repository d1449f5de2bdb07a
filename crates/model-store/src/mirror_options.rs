//! The options of a mirror, what it fetches, and what it reports.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Options of a [`Mirror`](crate::Mirror).
#[non_exhaustive]
pub struct MirrorOptions {
    /// The cache's directory.
    pub cache: PathBuf,
    /// Maximum size of the cache in bytes. If `None`, only the disk limits the cache.
    pub limit: Option<u64>,
    /// CA certificates (PEM) to trust instead of the public ones.
    pub authorities: Option<PathBuf>,
    /// Returns whether a file of the given name at the top of the location shows that the location is a
    /// single model rather than a repository.
    pub is_model_file: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// Returns whether a file of a single-model location is skipped. By default, only the file that the
    /// location names is fetched, if the location names a file.
    pub is_left_out: Box<LeftOut>,
}

/// Decides whether the file at a path is skipped. The arguments are the path, the file that the location names
/// if it names a file, and a function that returns whether the directory has a file at a path.
pub type LeftOut = dyn Fn(&str, Option<&str>, &dyn Fn(&str) -> bool) -> bool + Send + Sync;

impl MirrorOptions {
    /// Creates options for a cache directory without a size limit.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            limit: None,
            authorities: None,
            is_model_file: Box::new(|name| {
                let extension = Path::new(name).extension();
                extension.is_some_and(|extension| extension == "onnx") || name.starts_with("config.pb")
            }),
            is_left_out: Box::new(|path, named, _| named.is_some_and(|named| named != path)),
        }
    }

    /// Returns the options with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl fmt::Debug for MirrorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorOptions")
            .field("cache", &self.cache)
            .field("limit", &self.limit)
            .field("authorities", &self.authorities)
            .finish_non_exhaustive()
    }
}

/// The part of a location to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'n> {
    /// Mirror every model.
    All,
    /// Mirror these models; all others appear as empty directories.
    Named(&'n [String]),
    /// Mirror one model; the others are not checked.
    One(&'n str),
}

/// The result of a synchronisation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Names of the models that were added or changed.
    pub changed: Vec<String>,
    /// Names of the models that were removed, because the location does not contain them.
    pub removed: Vec<String>,
    /// Models that could not be fetched, each with the error.
    pub failed: Vec<(String, String)>,
    /// Number of bytes fetched.
    pub fetched: u64,
}
