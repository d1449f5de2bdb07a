//! Reads column-major arrays a block of rows at a time: each row is scattered over the whole array, but a
//! block of rows is contiguous within each column.

use std::ops::Range;

use fmt_core::{ByteSource, Error, TensorStream, read_into};

use crate::header::Element;

/// Rows of a column-major array, as row-major little-endian bytes.
pub(crate) struct RowsOfColumns<'a> {
    source: &'a dyn ByteSource,
    start: u64,
    element: Element,
    is_big_endian: bool,
    /// Dimensions of the array; the first dimension is the number of rows.
    dims: Vec<u64>,
    /// Rows that have not been read yet.
    rows: Range<u64>,
    /// Number of rows that are read and converted at a time.
    block: u64,
    column: Vec<u8>,
    /// Converted bytes not yet returned.
    ready: Vec<u8>,
    at: usize,
}

/// Number of bytes of rows that are converted at a time.
const BLOCK: u64 = 16 << 20;
/// Minimum length in bytes of the run of a column that is read at a time; with shorter runs, reading the
/// whole array is cheaper.
const SHORTEST_RUN: u64 = 128;
/// Cost of a separate read, as the number of bytes that a sequential read returns in the same time.
const COST_OF_A_RUN: u64 = 4 << 10;

impl<'a> RowsOfColumns<'a> {
    /// Creates a stream over a range of rows of an array at offset `start`. Returns `None` if reading the
    /// whole array is cheaper: when the rows are long and few, or when each read is a network request.
    pub(crate) fn new(
        source: &'a dyn ByteSource,
        start: u64,
        element: Element,
        is_big_endian: bool,
        dims: &[u64],
        rows: Range<u64>,
    ) -> Option<Self> {
        Self::in_blocks(source, start, element, is_big_endian, dims, rows, BLOCK)
    }

    /// Creates the same stream with a given block size in bytes.
    fn in_blocks(
        source: &'a dyn ByteSource,
        start: u64,
        element: Element,
        is_big_endian: bool,
        dims: &[u64],
        rows: Range<u64>,
        most: u64,
    ) -> Option<Self> {
        let (&count, others) = dims.split_first()?;
        // The product of all dimensions was checked for overflow.
        let columns: u64 = others.iter().product();
        let row = columns * element.size;
        if source.is_remote() || dims.contains(&0) {
            return None;
        }
        let wanted = rows.end - rows.start;
        let block = (most / row).clamp(1, wanted.max(1));
        let is_cheap = match block == wanted {
            // All rows fit in one block, because the rows are few or the array is small.
            true => row * block <= most && columns.saturating_mul(COST_OF_A_RUN) <= count * row,
            false => block * element.size >= SHORTEST_RUN,
        };
        is_cheap.then(|| Self {
            source,
            start,
            element,
            is_big_endian,
            dims: dims.to_vec(),
            rows,
            block,
            column: Vec::new(),
            ready: Vec::new(),
            at: 0,
        })
    }

    /// Converts the next block of rows.
    fn fill(&mut self) -> Result<(), Error> {
        let rows = (self.rows.end - self.rows.start).min(self.block);
        let (count, others) = (self.dims[0], &self.dims[1..]);
        let columns: u64 = others.iter().product();
        let width = self.element.size as usize;
        let row = columns as usize * width;
        self.column.resize(rows as usize * width, 0);
        self.ready.resize(rows as usize * row, 0);
        self.at = 0;
        let mut index = vec![0; others.len()];
        for column in 0..columns {
            // In the file, the first of the other axes changes fastest; in a row, the last axis.
            let place = index
                .iter()
                .zip(others)
                .fold(0, |place, (index, dim)| place * dim + index) as usize
                * width;
            let offset = self.start + (column * count + self.rows.start) * self.element.size;
            read_into(self.source, offset, &mut self.column, "the data")?;
            scatter(&self.column, width, &mut self.ready[place..], row);
            for (index, dim) in index.iter_mut().zip(others) {
                *index += 1;
                if *index < *dim {
                    break;
                }
                *index = 0;
            }
        }
        if self.is_big_endian && self.element.word > 1 {
            let words = self.ready.chunks_exact_mut(self.element.word as usize);
            words.for_each(<[u8]>::reverse);
        }
        self.rows.start += rows;
        Ok(())
    }
}

/// Scatters the elements of a column into the rows.
fn scatter(column: &[u8], width: usize, rows: &mut [u8], row: usize) {
    match width {
        1 => scatter_by::<1>(column, rows, row),
        2 => scatter_by::<2>(column, rows, row),
        4 => scatter_by::<4>(column, rows, row),
        8 => scatter_by::<8>(column, rows, row),
        _ => {
            for (element, row) in column.chunks_exact(width).zip(rows.chunks_mut(row)) {
                row[..width].copy_from_slice(element);
            }
        }
    }
}

/// Scatters like [`scatter`] for elements of a constant width, which is much faster.
fn scatter_by<const WIDTH: usize>(column: &[u8], rows: &mut [u8], row: usize) {
    for (element, row) in column.as_chunks::<WIDTH>().0.iter().zip(rows.chunks_mut(row)) {
        row[..WIDTH].copy_from_slice(element);
    }
}

impl TensorStream for RowsOfColumns<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.ready.len() {
                if self.rows.is_empty() {
                    break;
                }
                self.fill()?;
            }
            let len = (out.len() - filled).min(self.ready.len() - self.at);
            out[filled..filled + len].copy_from_slice(&self.ready[self.at..self.at + len]);
            self.at += len;
            filled += len;
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tensor_core::Bytes;

    use super::*;
    use crate::order::to_row_major;

    #[test]
    fn blocks_of_rows_are_those_of_the_whole() {
        for (dims, size, word) in [
            (&[4_000u64, 3, 50][..], 4, 4),
            (&[30_000, 20], 8, 4),
            (&[50_000, 5], 1, 1),
            (&[30_000, 2, 1, 2], 5, 1),
            (&[7_000, 30], 2, 2),
        ] {
            let len = dims.iter().product::<u64>() * size;
            let stored: Vec<u8> = (0..len).map(|at| (at % 251 + at / 251) as u8).collect();
            let element = Element { size, word };
            for is_big_endian in [false, true] {
                let whole = to_row_major(&stored, element, dims, true, is_big_endian).unwrap();
                let source = Bytes::from([b"head", &stored[..]].concat());
                let rows = |rows: Range<u64>| {
                    let mut stream =
                        RowsOfColumns::new(&source, 4, element, is_big_endian, dims, rows).unwrap();
                    let (mut read, mut piece) = (Vec::new(), vec![0; 1_000_000 + 48]);
                    loop {
                        match stream.read(&mut piece).unwrap() {
                            0 => return read,
                            len => read.extend_from_slice(&piece[..len]),
                        }
                    }
                };
                assert!(rows(0..dims[0]) == whole, "{dims:?}");
                let row = (len / dims[0]) as usize;
                assert!(rows(7..19) == whole[7 * row..19 * row], "{dims:?}");
            }
        }
    }

    #[test]
    fn some_arrays_are_better_read_as_a_whole() {
        let source = Bytes::new();
        let element = Element { size: 4, word: 4 };
        let is_taken =
            |dims: &[u64]| RowsOfColumns::new(&source, 0, element, false, dims, 0..dims[0]).is_some();
        for whole in [&[2, 1 << 30][..], &[100, 1 << 20], &[10, 10], &[0, 5], &[5, 0]] {
            assert!(!is_taken(whole), "{whole:?}");
        }
        for blocks in [&[1 << 30, 2][..], &[1 << 20, 100], &[2000, 100_000]] {
            assert!(is_taken(blocks), "{blocks:?}");
        }
    }
}
