//! Opens a sharded checkpoint without an index: file names contain the number of shards, and GGUF's metadata
//! identifies files that belong together.

use std::path::PathBuf;

use fmt_core::{Error, ErrorKind, Metadata, ReadOptions, TensorReader};
use tensor_core::QuotedName;

use crate::{composite::Composite, split::remove_split};

/// Opens all files of a set, in order.
pub(crate) fn open_set(files: &[PathBuf], options: &ReadOptions) -> Result<Composite<'static>, Error> {
    let mut whole: Option<Composite<'static>> = None;
    let mut tensors = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let label = file.display().to_string();
        let named =
            |error: Error| Error::new(error.kind(), format!("the file {}: {error}", QuotedName(&label)));
        let reader = crate::open::open_file(file, options).map_err(named)?;
        tensors.extend(tensors_by_split(reader.metadata(), number, files.len()).map_err(named)?);
        let part = Composite::new(label, reader);
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => whole.append(part)?,
        }
    }
    let mut whole = whole.ok_or_else(|| Error::new(ErrorKind::NotAFile, "there is no file to read"))?;
    remove_split(whole.metadata_mut());
    let found = whole.entries().len() as u64;
    match tensors.iter().find(|tensors| **tensors != found) {
        // The files are shards of one model, but one was replaced or has lost tensors.
        Some(expected) => {
            let error = Error::new(ErrorKind::SizeMismatch, "the number of tensors in all files")
                .expected(format_args!("{expected}, as 'split.tensors.count' says"))
                .found(found);
            if !options.lenient {
                return Err(error);
            }
            whole.add_lint(error.to_string());
        }
        None if tensors.is_empty() => whole.add_lint(format!(
            "no index lists the shards: all {} files with matching names are read",
            files.len()
        )),
        None => {}
    }
    Ok(whole)
}

/// Returns the total number of tensors of all files from GGUF's `split.*` keys, which must match the file's
/// name.
#[cfg(feature = "gguf")]
fn tensors_by_split(metadata: &Metadata, number: usize, count: usize) -> Result<Option<u64>, Error> {
    let Some(split) = fmt_gguf::Split::of(metadata)? else {
        return Ok(None);
    };
    if (usize::from(split.number), usize::from(split.count)) != (number, count) {
        let error = Error::new(
            ErrorKind::Malformed,
            "its name and 'split.no' and 'split.count' in it",
        );
        return Err(error
            .expected(format_args!(
                "number {number} (from 0) of {count}, as it is called"
            ))
            .found(format_args!("number {} of {}", split.number, split.count)));
    }
    Ok(Some(split.tensors.into()))
}

#[cfg(not(feature = "gguf"))]
fn tensors_by_split(_: &Metadata, _: usize, _: usize) -> Result<Option<u64>, Error> {
    Ok(None)
}
