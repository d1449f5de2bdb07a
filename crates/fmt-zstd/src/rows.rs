//! Reads parts of compressed tensors by the table of the seekable format.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use fmt_core::{ByteSource, Error, read_range};
use tensor_core::Bytes;

use crate::{
    decode::{Decoding, check_ratio, decode, memory, survey},
    frames::{SeekTable, TABLE_FOOT, Window},
};

/// Records the tensors whose frame tables have been checked against their frames.
#[derive(Debug, Default)]
pub struct ProvenTables(Mutex<HashSet<usize>>);

impl ProvenTables {
    /// Reads the decoded bytes `wanted` of tensor `index`, which has `whole` bytes, if its blob ends with a
    /// reliable table.
    ///
    /// A table that does not match the frames would give different bytes than a full read. Therefore the
    /// table is first compared with the frame headers, once per tensor. If the result is `None`, the caller
    /// must do a full read.
    pub(crate) fn read(
        &self,
        decoding: Decoding<'_>,
        index: usize,
        blob: &Range<u64>,
        whole: u64,
        wanted: Range<u64>,
    ) -> Result<Option<Bytes>, Error> {
        if wanted.is_empty() || wanted.end - wanted.start == whole {
            return Ok(None);
        }
        let Decoding {
            source,
            limits,
            threads,
        } = decoding;
        check_ratio(blob.end - blob.start, whole, blob.start)?;
        let Some((table, table_len)) = read_table(source, blob)? else {
            return Ok(None);
        };
        let frames = blob.start..blob.end - table_len;
        let Some(part) = Part::find(&table, &frames, whole, &wanted) else {
            return Ok(None);
        };
        if !self.prove(decoding, index, blob, whole, table_len, table)? {
            return Ok(None);
        }
        let stored = read_range(source, part.stored.clone(), "the compressed data")?;
        let mut memory = memory(part.decoded.end - part.decoded.start, limits)?;
        decode(&stored, part.stored.start, &mut memory, limits, threads)?;
        let bytes = Bytes::from(memory);
        // Both offsets are within the part that was just decoded into memory, so they fit `usize`.
        let start = (wanted.start - part.decoded.start) as usize;
        let len = (wanted.end - wanted.start) as usize;
        Ok(Some(bytes.slice(start..start + len)))
    }

    /// Compares a frame table with the frame headers, unless an earlier call has compared them. Returns false
    /// if the blob has no table, or the headers lack sizes.
    fn prove(
        &self,
        decoding: Decoding<'_>,
        index: usize,
        blob: &Range<u64>,
        whole: u64,
        table_len: u64,
        table: SeekTable,
    ) -> Result<bool, Error> {
        let proven = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if proven().contains(&index) {
            return Ok(true);
        }
        let at = (blob.end - table_len - blob.start) as usize;
        let window = Window::new(decoding.source, blob.clone());
        let survey = survey(window, Some(&(at, table)), blob.start, whole, decoding.limits)?;
        let is_table = survey.has_table && survey.is_sized;
        if is_table {
            proven().insert(index);
        }
        Ok(is_table)
    }
}

pub(crate) fn read_table(
    source: &dyn ByteSource,
    blob: &Range<u64>,
) -> Result<Option<(SeekTable, u64)>, Error> {
    let foot_start = blob.end.saturating_sub(TABLE_FOOT as u64).max(blob.start);
    let foot = read_range(source, foot_start..blob.end, "the table of frames")?;
    let len = SeekTable::len_by_foot(&foot).filter(|len| *len <= blob.end - blob.start);
    let Some(len) = len else {
        return Ok(None);
    };
    let bytes = read_range(source, blob.end - len..blob.end, "the table of frames")?;
    Ok(SeekTable::parse(&bytes).map(|table| (table, len)))
}

/// The frames that contain the requested range.
struct Part {
    /// The range of the frames in the file.
    stored: Range<u64>,
    /// The range of the frames' content in the decoded tensor.
    decoded: Range<u64>,
}

impl Part {
    /// Finds the frames that contain the range `wanted`. Returns `None` if the table's sizes do not add up to
    /// the size of all frames and of the tensor.
    fn find(table: &SeekTable, blob: &Range<u64>, whole: u64, wanted: &Range<u64>) -> Option<Self> {
        let mut part: Option<Self> = None;
        let (mut stored, mut decoded) = (blob.start, 0u64);
        for (stored_len, decoded_len) in &table.frames {
            let stored_end = stored.saturating_add(u64::from(*stored_len));
            let decoded_end = decoded.saturating_add(u64::from(*decoded_len));
            if decoded < wanted.end && decoded_end > wanted.start {
                let first = part.get_or_insert(Self {
                    stored: stored..stored,
                    decoded: decoded..decoded,
                });
                first.stored.end = stored_end;
                first.decoded.end = decoded_end;
            }
            (stored, decoded) = (stored_end, decoded_end);
        }
        let fits = decoded == whole && stored == blob.end;
        part.filter(|_| fits)
    }
}
