//! BYTES in NumPy files: arrays of fixed-width strings.

use fmt_core::{Entry, Error, ErrorKind, OpaqueDType, StoredDType, TENSOR_STREAM_UNIT, TensorReader};
use fmt_npy::TextWidth;
use oip_types::BytesTensor;
use tensor_core::{DType, Shape, Tensor};

use crate::files;

/// Returns the string width of an array, if its elements are strings.
pub(super) fn width(entry: &Entry) -> Option<TextWidth> {
    match &entry.dtype {
        StoredDType::Opaque(dtype) => TextWidth::of(dtype),
        _ => None,
    }
}

/// Reads an array of strings.
pub(super) fn read(reader: &dyn TensorReader, index: usize, width: TextWidth) -> Result<BytesTensor, Error> {
    let entry = &reader.entries()[index];
    let mut raw = zeros(entry.byte_len().unwrap_or(u64::MAX))?;
    // A stream returns whole units, so the buffer is rounded up to whole units.
    let len = raw.len();
    raw.resize(len.next_multiple_of(TENSOR_STREAM_UNIT), 0);
    let mut stream = reader.stream(index)?;
    let mut filled = 0;
    loop {
        // The buffer holds only whole elements.
        match stream.read(&mut raw[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    raw.truncate(len);
    let mut wrong = None;
    let elements = raw.chunks_exact(width.bytes());
    let elements =
        elements.map_while(|element| width.text(element).map_err(|error| wrong = Some(error)).ok());
    let texts = BytesTensor::from_elements(entry.shape.clone(), elements);
    match wrong {
        Some(error) => Err(error),
        None => texts.map_err(|error| Error::new(ErrorKind::Corrupt, error.message())),
    }
}

/// Encodes strings as a NumPy array: returns the dtype of the array and its bytes as a tensor.
pub(super) fn write(texts: &BytesTensor) -> Result<(OpaqueDType, Tensor), Error> {
    let mut longest = 0;
    for (index, element) in texts.iter().enumerate() {
        if element.ends_with(&[0]) {
            let what = format!(
                "element {index} ends with a zero byte, which NumPy takes for the end of a shorter string"
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        longest = longest.max(element.len());
    }
    let too_long = || Error::new(ErrorKind::TooLarge, "an element").found(format_args!("{longest} bytes"));
    let dtype = TextWidth::dtype_for(longest).ok_or_else(too_long)?;
    let width = dtype.block_bytes() as usize;
    let count = texts.shape().element_count();
    let mut raw = zeros(count.checked_mul(width as u64).ok_or_else(too_long)?)?;
    for (place, element) in raw.chunks_exact_mut(width).zip(texts.iter()) {
        place[..element.len()].copy_from_slice(element);
    }
    let bytes = Shape::vector(raw.len() as u64);
    let tensor = tensor_core::TensorSpec::new(DType::U8, bytes).and_then(|spec| Tensor::new(spec, raw));
    Ok((
        dtype,
        tensor.map_err(|error| Error::new(ErrorKind::TooLarge, error.to_string()))?,
    ))
}

/// Allocates the array, in which every string has the width of the longest.
fn zeros(len: u64) -> Result<Vec<u8>, Error> {
    let most = files::read_options().limits.decoded_bytes;
    let mut zeros = Vec::new();
    let has_room = len <= most && zeros.try_reserve_exact(len as usize + TENSOR_STREAM_UNIT).is_ok();
    if !has_room {
        let error = Error::new(
            ErrorKind::TooLarge,
            "the array of strings, all as wide as the longest",
        );
        return Err(error.expected(format_args!("at most {most} bytes")).found(len));
    }
    zeros.resize(len as usize, 0);
    Ok(zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NumPy strips trailing zero bytes, so strings that end with zero bytes would be read back shorter.
    #[test]
    fn texts_that_end_with_zeros_are_refused() {
        let texts = |texts: &[&[u8]]| {
            write(&BytesTensor::from_elements(Shape::vector(texts.len() as u64), texts).unwrap())
        };
        let (dtype, tensor) = texts(&[b"", b"a\0b", b"c"]).unwrap();
        assert_eq!(
            (dtype.name(), &tensor.bytes()[..]),
            ("S3", &b"\0\0\0a\0bc\0\0"[..])
        );
        assert_eq!(texts(&[]).unwrap().0.name(), "S1");
        let error = texts(&[b"a", b"b\0"]).unwrap_err();
        assert!(
            error.to_string().contains("element 1 ends with a zero byte"),
            "{error}"
        );
    }

    /// One long string makes every element of an array as wide, which exceeds the limit here.
    #[test]
    fn room_for_texts_is_limited() {
        let long = vec![b'a'; 1 << 20];
        let elements = std::iter::once(&long[..]).chain(std::iter::repeat_n(&b""[..], 1 << 14));
        let texts = BytesTensor::from_elements(Shape::vector((1 << 14) + 1), elements).unwrap();
        assert_eq!(write(&texts).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
