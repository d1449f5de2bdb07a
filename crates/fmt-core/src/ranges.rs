//! Reads byte ranges of a source, with the errors and checks that all readers share.

use std::{io, ops::Range};

use bytes::Bytes;
use tensor_core::{SpecError, Tensor, TensorSpec};

use crate::{ByteSource, Error, ErrorKind};

/// Reads part of a source. `what` describes that part in errors.
///
/// When opening a file, readers check that all ranges lie within the source, so missing bytes mean that the
/// file has changed since then.
///
/// ```
/// use bytes::Bytes;
/// use fmt_core::{ErrorKind, read_range};
///
/// let source = Bytes::from_static(b"abcdef");
/// assert_eq!(read_range(&source, 2..4, "the index").unwrap(), "cd");
/// let error = read_range(&source, 4..8, "the index").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Changed);
/// ```
///
/// # Errors
/// [`ErrorKind::Changed`] when there are fewer bytes; [`ErrorKind::Io`] when they cannot be read.
pub fn read_range(source: &dyn ByteSource, range: Range<u64>, what: &str) -> Result<Bytes, Error> {
    let (at, len) = (range.start, range.end.saturating_sub(range.start));
    let bytes = source
        .read(range)
        .map_err(|error| source_error(error, at, what))?;
    // A source may be user code, so its result is checked where lengths depend on it.
    if bytes.len() as u64 != len {
        return Err(source_error(io::ErrorKind::UnexpectedEof.into(), at, what));
    }
    Ok(bytes)
}

/// Fills `out` with the bytes of `source` starting at offset `at`. `what` describes the bytes in errors.
///
/// # Errors
/// The errors of [`read_range`].
pub fn read_into(source: &dyn ByteSource, at: u64, out: &mut [u8], what: &str) -> Result<(), Error> {
    source
        .read_into(at, out)
        .map_err(|error| source_error(error, at, what))
}

/// Creates a tensor from a dtype, a shape and the bytes that a reader has read or decoded.
///
/// # Errors
/// [`ErrorKind::SizeMismatch`] on a length mismatch, which is a bug in the reader.
pub fn tensor_of(spec: TensorSpec, bytes: impl Into<Bytes>) -> Result<Tensor, Error> {
    Tensor::new(spec, bytes).map_err(|error| Error::new(ErrorKind::SizeMismatch, error.to_string()))
}

/// Returns the error for a source of known length that could not be read at `at`. If the I/O error contains
/// an [`Error`], it comes from the source itself and keeps its kind.
#[must_use]
pub fn source_error(error: io::Error, at: u64, what: &str) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(own) => return own.at(at),
        Err(error) => error,
    };
    if error.kind() == io::ErrorKind::UnexpectedEof {
        let changed = format!("{what} is missing: the file became shorter");
        return Error::new(ErrorKind::Changed, changed).at(at);
    }
    Error::io(format!("{what} cannot be read"), error).at(at)
}

/// Returns the dtype and shape of a range of rows of a tensor, and their range within its row-major bytes.
/// Like [`TensorSpec::rows`], but returns an [`Error`] on failure.
///
/// ```
/// use fmt_core::{ErrorKind, row_range};
/// use tensor_core::{DType, Shape, TensorSpec};
///
/// let spec = TensorSpec::new(DType::F32, Shape::new(&[5, 3])?)?;
/// let (rows, bytes) = row_range(&spec, 1..3).unwrap();
/// assert_eq!((rows.to_string(), bytes), ("f32[2, 3]".to_owned(), 12..36));
/// assert_eq!(row_range(&spec, 4..6).unwrap_err().kind(), ErrorKind::OutOfBounds);
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
///
/// # Errors
/// [`ErrorKind::OutOfBounds`] for rows out of range, and for a scalar, which has no rows.
pub fn row_range(spec: &TensorSpec, rows: Range<u64>) -> Result<(TensorSpec, Range<u64>), Error> {
    spec.rows(rows).map_err(|error| match error {
        SpecError::ScalarHasNoRows => Error::new(ErrorKind::OutOfBounds, "a scalar has no rows"),
        SpecError::RowsOutOfRange { rows, available } => {
            Error::new(ErrorKind::OutOfBounds, "there are no such rows")
                .expected(format_args!("rows within 0..{available}"))
                .found(format_args!("{}..{}", rows.start, rows.end))
        }
        // A row's size overflows only for shapes like `[0, 2^63, 2^63]`.
        other => Error::new(ErrorKind::Overflow, other.to_string()),
    })
}

/// Checks that a buffer has the length of the tensor to be read into it.
///
/// # Errors
/// [`ErrorKind::SizeMismatch`] when the lengths differ.
pub fn check_buffer(spec: &TensorSpec, len: usize) -> Result<(), Error> {
    if len as u64 == spec.byte_len() {
        return Ok(());
    }
    let error = Error::new(ErrorKind::SizeMismatch, "the length of the buffer");
    Err(error
        .expected(format_args!("{} bytes for {spec}", spec.byte_len()))
        .found(len))
}

/// Reserves capacity for `count` more items. Returns an error if there is not enough memory.
///
/// ```
/// use fmt_core::{ErrorKind, reserve};
/// let mut list: Vec<u64> = Vec::new();
/// assert!(reserve(&mut list, 10).is_ok());
/// assert_eq!(reserve(&mut list, u64::MAX).unwrap_err().kind(), ErrorKind::TooLarge);
/// ```
///
/// # Errors
/// [`ErrorKind::TooLarge`] when memory is exhausted.
pub fn reserve<T>(items: &mut Vec<T>, count: u64) -> Result<(), Error> {
    let reserved = usize::try_from(count)
        .ok()
        .and_then(|count| items.try_reserve_exact(count).ok());
    reserved.ok_or_else(|| {
        let error = Error::new(ErrorKind::TooLarge, "not enough memory");
        error.expected(format_args!("room for {count} items"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensor_core::{DType, Shape, Tensor};

    use super::*;

    #[test]
    fn shapes_without_elements_have_rows_without_bytes() {
        let spec = |dims: &[u64]| TensorSpec::new(DType::F64, Shape::new(dims).unwrap()).unwrap();
        assert_eq!(row_range(&spec(&[4, 0, 1 << 63]), 1..4).unwrap().1, 0..0);
        assert_eq!(row_range(&spec(&[1 << 63, 0]), 0..1 << 63).unwrap().1, 0..0);
        assert_eq!(row_range(&spec(&[0, 1 << 63, 4]), 0..0).unwrap().1, 0..0);
        let backwards = Range { start: 2, end: 1 };
        for rows in [0..2, backwards, u64::MAX..u64::MAX] {
            assert_eq!(
                row_range(&spec(&[1]), rows).unwrap_err().kind(),
                ErrorKind::OutOfBounds
            );
        }
        assert!(row_range(&spec(&[]), 0..0).is_err());
    }

    #[test]
    fn a_source_that_gives_less_than_it_was_asked_for() {
        struct Short;
        impl ByteSource for Short {
            fn len(&self) -> u64 {
                10
            }
            fn read(&self, _: Range<u64>) -> io::Result<Bytes> {
                Ok(Bytes::from_static(b"abc"))
            }
        }
        assert_eq!(read_range(&Short, 0..3, "the head").unwrap(), "abc");
        assert_eq!(
            read_range(&Short, 0..4, "the head").unwrap_err().kind(),
            ErrorKind::Changed
        );
    }

    proptest! {
        #[test]
        fn rows_are_those_of_the_tensor(dims in prop::collection::vec(0u64..5, 1..4), cut in 0u64..5, to in 0u64..5) {
            let shape = Shape::new(&dims).unwrap();
            let elements: Vec<u16> = (0..shape.element_count() as u16).collect();
            let tensor = Tensor::from_vec(shape, elements).unwrap();
            let (found, wanted) = (row_range(tensor.spec(), cut..to), tensor.rows(cut..to));
            prop_assert_eq!(found.is_ok(), wanted.is_ok());
            if let (Ok((spec, range)), Ok(wanted)) = (found, wanted) {
                prop_assert_eq!(&spec, wanted.spec());
                prop_assert_eq!(&tensor.bytes()[range.start as usize..range.end as usize], &wanted.bytes()[..]);
            }
        }
    }
}
