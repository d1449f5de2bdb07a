//! Why something cannot be recorded, or a recording not be read.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why something cannot be recorded, or a recording not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A tensor file is not as it should be, or its tensors cannot be in one.
    #[error("{}: {source}", path.display())]
    Tensors {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: fmt_core::Error,
    },
    /// The folder has no index.
    #[error("{} has no index of captured requests (index-*.jsonl)", path.display())]
    NoIndex {
        /// Which.
        path: PathBuf,
    },
    /// A line of an index is damaged.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// The index.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A file holds tensors, but not a captured request.
    #[error("{}: not a captured request: {why}", path.display())]
    NoRequest {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl CaptureError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
