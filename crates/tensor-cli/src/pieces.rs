//! A tensor's bytes in pieces, so that memory stays small however large the tensor is.

use fmt_core::{Encoding, Error, Layout, TensorReader};
use tensor_core::{Bytes, Tensor};

/// Bytes that are held at a time, where the encoding allows.
const PIECE: u64 = 8 << 20;

/// Parts of a tensor, one after the other: its rows, some at a time.
pub(crate) struct Parts<'r> {
    reader: &'r dyn TensorReader,
    index: usize,
    next: u64,
    rows: u64,
    step: u64,
    is_over: bool,
}

/// Goes through a tensor that is not sparse.
pub(crate) fn parts(reader: &dyn TensorReader, index: usize) -> Parts<'_> {
    let entry = &reader.entries()[index];
    let rows = entry.shape.dims().first().copied().unwrap_or(0);
    let row = entry.byte_len().unwrap_or(0).checked_div(rows).unwrap_or(0);
    // What is compressed as a whole would be decoded for each part anew.
    let step = match entry.encoding {
        Encoding::Raw => (PIECE / row.max(1)).max(1),
        _ => rows,
    };
    Parts {
        reader,
        index,
        next: 0,
        rows,
        step,
        is_over: false,
    }
}

impl Iterator for Parts<'_> {
    type Item = Result<Tensor, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        if self.step >= self.rows {
            self.is_over = true;
            return Some(self.reader.tensor(self.index));
        }
        let start = self.next;
        self.next = start.saturating_add(self.step).min(self.rows);
        self.is_over = self.next == self.rows;
        Some(self.reader.rows(self.index, start..self.next))
    }
}

/// Gives a tensor's bytes as writers take them: row-major and little-endian; of a sparse one the indices, then the
/// values.
pub(crate) fn bytes(
    reader: &dyn TensorReader,
    index: usize,
) -> Result<Box<dyn Iterator<Item = Result<Bytes, Error>> + '_>, Error> {
    if let Layout::Coo { .. } = reader.entries()[index].layout {
        let sparse = reader.sparse(index)?;
        let parts = [sparse.indices().bytes().clone(), sparse.values().bytes().clone()];
        return Ok(Box::new(parts.into_iter().map(Ok)));
    }
    Ok(Box::new(
        parts(reader, index).map(|part| part.map(Tensor::into_bytes)),
    ))
}
