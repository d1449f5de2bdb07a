//! What is legal but odd in a file.

use std::ops::Range;

use fmt_core::{Error, Lint, TensorReader, holes};

use crate::{
    TbufReader,
    footer::io_error,
    layout::{DATA_START, VERSION, tensor_id},
};

/// Zero bytes between tensors up to this many are taken for alignment.
const PADDING: u64 = 4096;
/// Bytes of a hole that are looked at at a time.
const CHUNK: usize = 64 << 10;

pub(crate) fn of(reader: &TbufReader) -> Result<Vec<Lint>, Error> {
    let mut lints = Vec::new();
    of_index(reader, &mut lints);
    of_tensors(reader, &mut lints);
    of_holes(reader, &mut lints)?;
    Ok(lints)
}

fn of_index(reader: &TbufReader, lints: &mut Vec<Lint>) {
    let mut about_file = |message: String| {
        lints.push(Lint {
            message,
            tensor: None,
            range: Some(reader.index_range()),
        });
    };
    if reader.version().split('.').next() != VERSION.split('.').next() {
        let version = tensor_core::Quoted(reader.version());
        about_file(format!(
            "the version is {version}, not of the major version 1 (T8)"
        ));
    }
    let ids = reader.stored().iter().map(|stored| stored.id);
    if !ids.is_sorted_by(|a, b| a < b) {
        about_file(
            "the tensors are not listed by ascending id, by which some readers search (T5)".to_owned(),
        );
    }
    if reader.has_unknown_fields() {
        about_file("the index has fields that are not in the specification (T17)".to_owned());
    }
}

fn of_tensors(reader: &TbufReader, lints: &mut Vec<Lint>) {
    for (number, (entry, stored)) in reader.entries().iter().zip(reader.stored()).enumerate() {
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
        if reader.find(&entry.name) != Some(number) {
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

/// Bytes that belong to nothing: all that are not zero, and zeros beyond what alignment explains (T12).
fn of_holes(reader: &TbufReader, lints: &mut Vec<Lint>) -> Result<(), Error> {
    let ranges: Vec<Range<u64>> = reader.entries().iter().map(|entry| entry.range.clone()).collect();
    let mut buffer = Vec::new();
    for hole in holes(&ranges, DATA_START..reader.index_range().start) {
        let message = match marks(reader, &hole, &mut buffer)? {
            Some(marks) => {
                lints.push(Lint {
                    message: "bytes that are not zero belong to no tensor (T12)".to_owned(),
                    tensor: None,
                    range: Some(marks),
                });
                continue;
            }
            None if hole.end - hole.start > PADDING => "zero bytes belong to no tensor (T12)".to_owned(),
            None => continue,
        };
        lints.push(Lint {
            message,
            tensor: None,
            range: Some(hole),
        });
    }
    Ok(())
}

/// From the first to the last byte of a hole that is not zero.
fn marks(reader: &TbufReader, hole: &Range<u64>, buffer: &mut Vec<u8>) -> Result<Option<Range<u64>>, Error> {
    let mut marks: Option<Range<u64>> = None;
    let mut at = hole.start;
    while at < hole.end {
        let len = usize::try_from(hole.end - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        buffer.resize(len, 0);
        let read = reader.source().read_into(at, buffer);
        read.map_err(|error| io_error(error, at, "what lies between the tensors"))?;
        let is_mark = |byte: &u8| *byte != 0;
        if let (Some(first), Some(last)) = (buffer.iter().position(is_mark), buffer.iter().rposition(is_mark))
        {
            let start = marks.map_or(at + first as u64, |marks| marks.start);
            marks = Some(start..at + last as u64 + 1);
        }
        at += len as u64;
    }
    Ok(marks)
}
