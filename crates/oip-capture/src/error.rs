//! Errors that occur when exchanges are recorded, or recordings are read.

use std::{io, path::PathBuf};

use thiserror::Error;

/// An error while recording exchanges, or while reading a recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// A file or directory could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A tensor file is invalid, or its tensors cannot be stored.
    #[error("{}: {source}", path.display())]
    Tensors {
        /// The path of the tensor file.
        path: PathBuf,
        /// The reason why the tensors cannot be read or stored.
        source: fmt_core::Error,
    },
    /// The directory has no index.
    #[error("{} has no index of captured requests (index-*.jsonl)", path.display())]
    NoIndex {
        /// The path of the directory.
        path: PathBuf,
    },
    /// A line of an index is damaged.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// The path of the index.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The problem with the line.
        why: String,
    },
    /// A tensor file is not a captured request.
    #[error("{}: not a captured request: {why}", path.display())]
    NoRequest {
        /// The path of the tensor file.
        path: PathBuf,
        /// The reason why the file is not a captured request.
        why: String,
    },
}

impl CaptureError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
