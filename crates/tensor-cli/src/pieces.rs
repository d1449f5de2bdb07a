//! Reads tensors in chunks, so that memory stays bounded.

use std::ops::Range;

use fmt_core::{
    Encoding, Error, ErrorKind, Layout, TENSOR_STREAM_UNIT, TensorReader, TensorStream, row_range,
};
use tensor_core::{Bytes, Shape, Tensor, TensorSpec};

/// Bytes per chunk.
const PIECE: usize = 1 << 20;

/// Iterator over consecutive chunks of a tensor.
struct Parts<'r> {
    stream: Option<Box<dyn TensorStream + 'r>>,
    piece: usize,
}

/// The bytes of a tensor in chunks.
pub(crate) type Pieces<'r> = Box<dyn Iterator<Item = Result<Bytes, Error>> + 'r>;

/// Reads a dense tensor in chunks, row-major and little-endian.
pub(crate) fn parts(reader: &dyn TensorReader, index: usize) -> Result<Pieces<'_>, Error> {
    let len = reader.entries()[index].byte_len().unwrap_or(u64::MAX);
    let piece = usize::try_from(len).map_or(PIECE, |len| len.clamp(1, PIECE));
    Ok(Box::new(Parts {
        stream: Some(reader.stream(index)?),
        piece: piece.next_multiple_of(TENSOR_STREAM_UNIT),
    }))
}

/// Reads a range of rows of a dense tensor in chunks.
///
/// Up to 8 MiB of rows are read at once. More rows are read in groups if the tensor is stored raw; otherwise
/// from the tensor's stream, after skipping the beginning of the stream.
pub(crate) fn rows(reader: &dyn TensorReader, index: usize, rows: Range<u64>) -> Result<Pieces<'_>, Error> {
    /// Maximum number of bytes of rows that are read at once.
    const TOGETHER: u64 = 8 << 20;
    let entry = &reader.entries()[index];
    let spec = entry.spec();
    let spec = spec.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the dtype has no rows"))?;
    let (_, range) = row_range(&spec, rows.clone())?;
    let len = range.end - range.start;
    if len <= TOGETHER {
        let few = reader.rows(index, rows)?.into_bytes();
        return Ok(Box::new(std::iter::once(Ok(few))));
    }
    let row = len / (rows.end - rows.start);
    if entry.encoding == Encoding::Raw && row <= TOGETHER {
        let group = TOGETHER / row;
        let starts = (0..).map(move |number| rows.start + number * group);
        let groups = starts
            .take_while(move |start| *start < rows.end)
            .map(move |start| {
                let part = start..rows.end.min(start + group);
                reader.rows(index, part).map(tensor_core::Tensor::into_bytes)
            });
        return Ok(Box::new(groups));
    }
    let mut at = 0;
    let cut = parts(reader, index)?.map_while(move |piece| {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        let here = at..at + piece.len() as u64;
        at = here.end;
        if here.start >= range.end {
            return None;
        }
        let within = |byte: u64| (byte.clamp(here.start, here.end) - here.start) as usize;
        Some(Ok(piece.slice(within(range.start)..within(range.end))))
    });
    Ok(Box::new(cut))
}

impl Iterator for Parts<'_> {
    type Item = Result<Bytes, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = vec![0; self.piece];
        match self.stream.as_mut()?.read(&mut piece) {
            Ok(0) => None,
            Ok(len) => {
                piece.truncate(len);
                Some(Ok(piece.into()))
            }
            Err(error) => {
                self.stream = None;
                Some(Err(error))
            }
        }
    }
}

/// Passes a tensor's bytes to `see`, in the order in which they are written to files: row-major and
/// little-endian; for a sparse tensor first indices, then values.
pub(crate) fn each(
    reader: &dyn TensorReader,
    index: usize,
    see: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    if let Layout::Coo { .. } = reader.entries()[index].layout {
        let sparse = reader.sparse(index)?;
        see(sparse.indices().bytes())?;
        return see(sparse.values().bytes());
    }
    tensor_files::read_ahead(reader, index, see)
}

/// Elements printed at each end of each axis of a large tensor.
const EDGE: u64 = 3;
/// Maximum number of elements of a tensor that is printed in full.
const PRINTED_WHOLE: u64 = 1000;

/// Reduces a tensor to the elements that are printed: the ends of each long axis, and one placeholder for the
/// middle. Returns the reduced tensor, and whether elements were omitted.
pub(crate) fn printable(reader: &dyn TensorReader, index: usize) -> Result<(Tensor, bool), Error> {
    let spec = reader.entries()[index].spec();
    let spec = spec.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the dtype has no values to print"))?;
    let dims = spec.shape().dims();
    let kept: Vec<u64> = dims.iter().map(|dim| (*dim).min(2 * EDGE + 1)).collect();
    let is_small = kept
        .iter()
        .try_fold(1u64, |all, dim| all.checked_mul(*dim))
        .is_some_and(|all| all <= 100_000);
    if spec.element_count() <= PRINTED_WHOLE || !is_small {
        return Ok((reader.tensor(index)?, false));
    }
    let width = spec.dtype().size();
    let mut shown = Vec::new();
    let mut wanted = positions(dims).into_iter().peekable();
    let mut start = 0u64;
    for part in parts(reader, index)? {
        let part = part?;
        let end = start + (part.len() / width) as u64;
        while let Some(at) = wanted.next_if(|at| *at < end) {
            let at = (at - start) as usize * width;
            shown.extend_from_slice(&part[at..at + width]);
        }
        start = end;
    }
    let shape = Shape::new(&kept);
    let tensor = shape
        .and_then(|shape| TensorSpec::new(spec.dtype(), shape))
        .and_then(|spec| Tensor::new(spec, shown));
    let tensor = tensor.map_err(|error| Error::new(ErrorKind::SizeMismatch, error.to_string()))?;
    Ok((tensor, true))
}

/// Returns the indices of the elements that are printed, in row-major order.
fn positions(dims: &[u64]) -> Vec<u64> {
    let mut positions = vec![0];
    for &dim in dims {
        let kept = dim.min(2 * EDGE + 1);
        // Each long axis keeps its leading elements, one placeholder from the middle, and its trailing
        // elements.
        let entry = |at: u64| if at <= EDGE { at } else { dim - (kept - at) };
        positions = positions
            .iter()
            .flat_map(|before| (0..kept).map(move |at| before * dim + entry(at)))
            .collect();
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_long_axes_are_kept() {
        assert_eq!(positions(&[]), [0]);
        assert_eq!(positions(&[5]), [0, 1, 2, 3, 4]);
        assert_eq!(positions(&[100]), [0, 1, 2, 3, 97, 98, 99]);
        assert_eq!(positions(&[2, 9])[7..], [9, 10, 11, 12, 15, 16, 17]);
    }
}
