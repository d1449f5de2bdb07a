//! Checks the values of an index entry.

use fmt_core::{Encoding, Entry, Error, ErrorKind, Layout, StoredDType};
use tensor_core::{DType, QuotedName, Shape, SpecError};

use crate::layout::ALIGNMENT;

pub(crate) fn unsupported(entry: &Entry, says_big: bool) -> Option<String> {
    match (&entry.layout, &entry.dtype, &entry.encoding) {
        (Layout::Unknown(layout), ..) => Some(format!("the layout {}", QuotedName(layout))),
        (_, StoredDType::Unknown(dtype), _) => Some(format!("the dtype {}", QuotedName(dtype))),
        (.., Encoding::Unknown(encoding)) => Some(format!("the encoding {}", QuotedName(encoding))),
        (.., Encoding::Zstd) if says_big => {
            Some("compressed data marked as big-endian, which the format does not define".to_owned())
        }
        _ => None,
    }
}

/// Checks an offset: data begins after the magic, at a multiple of 64. An empty tensor may also have offset
/// 0.
pub(crate) fn check_offset(offset: u64, size: u64) -> Result<(), Error> {
    if !offset.is_multiple_of(ALIGNMENT) {
        let error = Error::new(ErrorKind::Misaligned, "the offset").rule("Z10");
        return Err(error
            .expected(format_args!("a multiple of {ALIGNMENT}"))
            .found(offset));
    }
    if offset < ALIGNMENT && size > 0 {
        let error = Error::new(ErrorKind::OutOfBounds, "the offset").rule("Z10");
        return Err(error
            .expected(format_args!("at least {ALIGNMENT}, after the magic"))
            .found(offset));
    }
    Ok(())
}

/// Returns the offset where a tensor's data ends, and checks that the data is before the index at
/// `index_start`.
pub(crate) fn check_end(offset: u64, size: u64, index_start: u64) -> Result<u64, Error> {
    let Some(end) = offset.checked_add(size) else {
        let error = Error::new(ErrorKind::Overflow, "offset and size together").rule("Z10");
        return Err(error
            .expected("less than 2^64")
            .found(format_args!("{offset} + {size}")));
    };
    if end > index_start {
        let error = Error::new(ErrorKind::OutOfBounds, "the end of the data").rule("Z10");
        return Err(error
            .expected(format_args!("at most {index_start}, where the index begins"))
            .found(end));
    }
    Ok(end)
}

/// Checks the stored size against dtype and shape. The flag that is returned with the error is true if the
/// stored size is wrong, and false if dtype and shape are invalid.
pub(crate) fn check_size(
    dtype: DType,
    shape: &Shape,
    encoding: &Encoding,
    size: u64,
) -> Result<(), (Error, bool)> {
    let mismatch = |rule, expected: String| {
        let error = Error::new(ErrorKind::SizeMismatch, "the size of the data").rule(rule);
        Err((error.expected(expected).found(size), true))
    };
    let Some(len) = shape.element_count().checked_mul(dtype.size() as u64) else {
        let shape = shape.clone();
        return Err((
            Error::of_spec(&SpecError::ByteLengthOverflow { dtype, shape }).rule("Z18"),
            false,
        ));
    };
    match encoding {
        Encoding::Raw if size != len => mismatch("Z10", format!("{len} bytes for {dtype}{shape}")),
        Encoding::Zstd if size == 0 => mismatch("Z15", "at least one frame".to_owned()),
        _ => Ok(()),
    }
}
