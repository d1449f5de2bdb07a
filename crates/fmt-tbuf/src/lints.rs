//! Finds valid but suspicious contents of a file.

use std::ops::Range;

use fmt_core::{ByteSource, Error, Lint, lint_holes};

use crate::{
    index::Index,
    layout::{DATA_START, VERSION, tensor_id},
};

/// Up to this many zero bytes between tensors count as alignment padding.
const PADDING: u64 = 4096;

/// Collects the lints of a file; `place` is the range of the index.
pub(crate) fn of(index: &Index, place: &Range<u64>, source: &dyn ByteSource) -> Result<Vec<Lint>, Error> {
    let mut lints = Vec::new();
    of_index(index, place, &mut lints);
    of_tensors(index, &mut lints);
    let ranges: Vec<Range<u64>> = index.entries.iter().map(|entry| entry.range.clone()).collect();
    lints.extend(lint_holes(
        source,
        &ranges,
        DATA_START..place.start,
        PADDING,
        "T12",
    )?);
    Ok(lints)
}

fn of_index(index: &Index, place: &Range<u64>, lints: &mut Vec<Lint>) {
    let mut about_file = |message: String| {
        lints.push(Lint {
            message,
            tensor: None,
            range: Some(place.clone()),
        });
    };
    if index.version.split('.').next() != VERSION.split('.').next() {
        let version = tensor_core::QuotedName(&index.version);
        about_file(format!(
            "the version is {version}, not of the major version 1 (T8)"
        ));
    }
    let ids = index.stored.iter().map(|stored| stored.id);
    if !ids.is_sorted_by(|a, b| a < b) {
        about_file(
            "the tensors are not listed by ascending id, by which some readers search (T5)".to_owned(),
        );
    }
    if index.has_unknown_fields() {
        about_file("the index has fields that are not in the specification (T17)".to_owned());
    }
}

fn of_tensors(index: &Index, lints: &mut Vec<Lint>) {
    for (number, (entry, stored)) in index.entries.iter().zip(&index.stored).enumerate() {
        let mut about_tensor = |message: String| {
            lints.push(Lint {
                message,
                tensor: Some(entry.name.clone()),
                range: Some(entry.range.clone()),
            });
        };
        let expected = tensor_id(&entry.name);
        if stored.id != expected {
            about_tensor(format!(
                "the id is {:#x}, the name's would be {expected:#x} (T6)",
                stored.id
            ));
        }
        if index.find(&entry.name) != Some(number) {
            about_tensor("an earlier tensor has the same name (T7)".to_owned());
        }
        let width = entry.dtype.known().map_or(1, |dtype| dtype.size() as u64);
        if entry.stored_size() > 0 && entry.range.start % width != 0 {
            about_tensor(
                "the data is not aligned for its elements, so that typed access must copy (T3)".to_owned(),
            );
        }
    }
}
