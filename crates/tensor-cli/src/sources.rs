//! Reads one or several files as a single reader, with a progress bar and interrupts.

use std::path::{Path, PathBuf};

use fmt_core::{Entry, Error, ErrorKind, TensorReader};
use parking_lot::Mutex;
use tensor_files::Composite;

use crate::{
    failure::{About, Failure, Outcome},
    files,
    progress::{self, Progress},
};

/// Opens all files as a single reader. No two files may contain tensors with the same name.
pub(crate) fn open_all(paths: &[PathBuf]) -> Outcome<Composite<'static>> {
    let mut all: Option<Composite<'static>> = None;
    for path in paths {
        let file = files::open(path)?;
        match &mut all {
            None => all = Some(file),
            Some(all) => all.append(file).about(path)?,
        }
    }
    let error = || Error::new(ErrorKind::NotAFile, "there is no file to read");
    all.ok_or_else(error).about(Path::new(""))
}

/// Adds a progress bar and an interrupt check to reading.
pub(crate) fn watched(sources: Composite<'_>) -> Composite<'_> {
    let lens = sources.entries().iter().filter_map(Entry::byte_len);
    let progress = Mutex::new(Progress::new(lens.fold(0, u64::saturating_add)));
    sources.watched(move |bytes| {
        // The progress bar is usable even after a panic in another thread.
        let mut progress = progress.lock();
        progress.advance(bytes);
        match progress::is_interrupted() {
            true => Err(Error::new(ErrorKind::Io, "interrupted")),
            false => Ok(()),
        }
    })
}

/// Returns [`Failure::Interrupted`] instead of `failure` after an interrupt.
pub(crate) fn unless_interrupted(failure: Failure) -> Failure {
    if progress::is_interrupted() {
        Failure::Interrupted
    } else {
        failure
    }
}
