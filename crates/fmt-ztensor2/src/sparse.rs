//! Converts sparse tensors from coordinates per axis, or from compressed matrix rows, to coordinates per
//! entry (O11).

use fmt_core::{Entry, Error, ErrorKind, Limits};
use fmt_zstd::memory;
use tensor_core::{Bytes, DType, Shape, SparseCoo, SparseError, Tensor, TensorSpec};

use crate::{container::Version, entries::Sparse};

/// The decoded bytes of a sparse tensor's parts.
pub(crate) struct DecodedParts {
    pub(crate) values: Bytes,
    pub(crate) indices: Bytes,
    pub(crate) indptr: Option<Bytes>,
}

/// Combines the parts of a sparse tensor and validates all indices.
pub(crate) fn joined(
    entry: &Entry,
    sparse: &Sparse,
    parts: DecodedParts,
    version: Version,
    limits: &Limits,
) -> Result<SparseCoo, Error> {
    let rank = entry.shape.rank();
    let nnz = sparse.nnz;
    let len = nnz.checked_mul(8 * rank as u64);
    let len = len.ok_or_else(|| Error::new(ErrorKind::Overflow, "the bytes of all indices").rule("O11"))?;
    let mut coordinates = memory(len, limits)?;
    // The entries are in memory, so their number fits `usize`.
    let count = usize::try_from(nnz).unwrap_or(usize::MAX);
    let mut put = |number: usize, axis: usize, index: u64| {
        let at = 8 * (number * rank + axis);
        coordinates[at..at + 8].copy_from_slice(&index.to_le_bytes());
    };
    match &parts.indptr {
        None => {
            for axis in 0..rank {
                for number in 0..count {
                    put(number, axis, sparse.index(&parts.indices, axis * count + number));
                }
            }
        }
        Some(indptr) => visit_rows(sparse, indptr, &parts.indices, version, |number, row, column| {
            put(number, 0, row);
            put(number, 1, column);
        })?,
    }
    let made = |dtype: DType, dims: &[u64], bytes: Bytes| {
        Tensor::new(TensorSpec::new(dtype, Shape::new(dims)?)?, bytes)
    };
    let dtype = entry.dtype.known().unwrap_or(DType::U8);
    let indices = made(DType::U64, &[nnz, rank as u64], coordinates.into());
    let joined = indices
        .and_then(|indices| Ok((indices, made(dtype, &[nnz], parts.values)?)))
        .map_err(SparseError::Spec)
        .and_then(|(indices, values)| SparseCoo::new(entry.shape.clone(), indices, values));
    let joined = joined.map_err(|error| of_sparse(&error))?;
    // The entries may be in any order. Sorting only checks for duplicate coordinates.
    joined.sorted().map_err(|error| of_sparse(&error))?;
    Ok(joined)
}

/// Calls `visit` with the number, row and column of each entry of compressed rows, and validates the rows.
fn visit_rows(
    sparse: &Sparse,
    indptr: &Bytes,
    indices: &Bytes,
    version: Version,
    mut visit: impl FnMut(usize, u64, u64),
) -> Result<(), Error> {
    let bad = |what: &str| Error::new(ErrorKind::OutOfBounds, what).rule("O11");
    let nnz = sparse.nnz;
    let rows = indptr.len() / sparse.width as usize - 1;
    let mut begin = sparse.index(indptr, 0);
    if begin != 0 {
        return Err(bad("where the first row begins").expected(0).found(begin));
    }
    for row in 0..rows {
        let end = sparse.index(indptr, row + 1);
        if end < begin || end > nnz {
            return Err(bad("where a row ends")
                .expected(format_args!("{begin} to {nnz} for row {row}"))
                .found(end));
        }
        let mut last = None;
        for number in begin as usize..end as usize {
            let column = sparse.index(indices, number);
            if version == Version::V2 && last.is_some_and(|last| column <= last) {
                return Err(bad("the columns of a row do not ascend").found(format_args!(
                    "{column} in row {row}, after {}",
                    last.unwrap_or_default()
                )));
            }
            last = Some(column);
            visit(number, row as u64, column);
        }
        begin = end;
    }
    if begin != nnz {
        return Err(bad("where the last row ends").expected(nnz).found(begin));
    }
    Ok(())
}

impl Sparse {
    /// Returns the index at position `at` of the bytes of an index part.
    fn index(&self, bytes: &Bytes, at: usize) -> u64 {
        match self.width {
            4 => u64::from(word::<4, u32>(bytes, at, u32::from_le_bytes)),
            _ => word::<8, u64>(bytes, at, u64::from_le_bytes),
        }
    }
}

fn word<const N: usize, T>(bytes: &Bytes, at: usize, read: fn([u8; N]) -> T) -> T {
    let from = bytes.get(at * N..).and_then(|rest| rest.first_chunk::<N>());
    read(*from.unwrap_or(&[0; N]))
}

fn of_sparse(error: &SparseError) -> Error {
    let kind = match error {
        SparseError::IndexOutOfRange { .. } => ErrorKind::OutOfBounds,
        SparseError::Duplicate { .. } => ErrorKind::Duplicate,
        _ => ErrorKind::SizeMismatch,
    };
    Error::new(kind, error.to_string()).rule("O11")
}
