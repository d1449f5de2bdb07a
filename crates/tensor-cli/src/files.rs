//! Files of every format, by path.

use std::path::Path;

use fmt_core::{Format, TensorReader};

use crate::failure::{About, Outcome};

/// Opens a file of whichever format it is.
pub(crate) fn open(path: &Path) -> Outcome<Box<dyn TensorReader>> {
    tensor_files::open(path).about(path)
}

/// The format that a file is in.
pub(crate) fn detect(path: &Path) -> Outcome<&'static dyn Format> {
    tensor_files::detect(path).about(path)
}

/// The format to write a file in: the one that is asked for, else the one of its extension.
pub(crate) fn format_of(path: &Path, asked_for: Option<&str>) -> Outcome<&'static dyn Format> {
    match asked_for {
        Some(id) => tensor_files::format_by_id(id),
        None => tensor_files::format_by_path(path),
    }
    .about(path)
}
