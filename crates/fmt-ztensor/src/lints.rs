//! What is legal but odd in a file.

use std::ops::Range;

use fmt_core::{Encoding, Error, Layout, Lint, StoredDType, TensorReader, holes};

use crate::{
    ZtensorReader,
    checksum::Claim,
    footer::read_into,
    layout::{ALIGNMENT, MAGIC},
};

/// Zero bytes between tensors up to this many are taken for alignment.
const PADDING: u64 = 4096;
/// Bytes of a hole that are looked at at a time.
const CHUNK: usize = 64 << 10;

pub(crate) fn of(reader: &ZtensorReader) -> Result<Vec<Lint>, Error> {
    let mut lints = Vec::new();
    of_tensors(reader, &mut lints);
    of_holes(reader, &mut lints)?;
    Ok(lints)
}

fn of_tensors(reader: &ZtensorReader, lints: &mut Vec<Lint>) {
    for (number, (entry, details)) in reader.entries().iter().zip(reader.details()).enumerate() {
        let mut about = |message: String| {
            lints.push(Lint {
                message,
                tensor: Some(entry.name.clone()),
                range: Some(entry.range.clone()),
            });
        };
        if reader.find(&entry.name) != Some(number) {
            about("an earlier tensor has the same name (Z9)".to_owned());
        }
        if let Some(reason) = &entry.unsupported {
            about(format!("{reason} is not in the specification (Z14)"));
        }
        let means_nothing = match (&entry.dtype, &entry.encoding) {
            (StoredDType::Known(dtype), Encoding::Raw) => dtype.size() == 1,
            _ => true,
        };
        if details.says_big.is_some() && means_nothing && entry.layout == Layout::Dense {
            about(
                "data_endianness says nothing about data that is compressed or of single bytes (Z7)"
                    .to_owned(),
            );
        }
        if let Some(text) = &entry.checksum
            && Claim::parse(text) == Ok(Claim::Unknown)
        {
            let text = tensor_core::Quoted(text);
            about(format!("the checksum {text} is of a kind that is not known (Z5)"));
        }
    }
}

/// Bytes that belong to nothing: all that are not zero, and zeros beyond what alignment explains (Z10).
fn of_holes(reader: &ZtensorReader, lints: &mut Vec<Lint>) -> Result<(), Error> {
    let ranges: Vec<Range<u64>> = reader.entries().iter().map(|entry| entry.range.clone()).collect();
    let mut buffer = Vec::new();
    for hole in holes(&ranges, MAGIC.len() as u64..reader.index_range().start) {
        let message = match marks(reader, &hole, &mut buffer)? {
            Some(marks) => {
                lints.push(Lint {
                    message: "bytes that are not zero belong to no tensor (Z10)".to_owned(),
                    tensor: None,
                    range: Some(marks),
                });
                continue;
            }
            None if hole.end - hole.start >= PADDING.max(ALIGNMENT) => {
                "zero bytes belong to no tensor (Z10)".to_owned()
            }
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
fn marks(
    reader: &ZtensorReader,
    hole: &Range<u64>,
    buffer: &mut Vec<u8>,
) -> Result<Option<Range<u64>>, Error> {
    let mut marks: Option<Range<u64>> = None;
    let mut at = hole.start;
    while at < hole.end {
        let len = usize::try_from(hole.end - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        buffer.resize(len, 0);
        read_into(reader.source(), at, buffer, "what lies between the tensors")?;
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
