//! Tensors of byte strings (BYTES) in the protocol's length-prefixed form.

use std::{fmt, ops::Range};

use bytes::{BufMut, Bytes};
use tensor_core::Shape;

use crate::ServiceError;

/// A tensor of byte strings, in the protocol's raw form: each element is a length, as a little-endian `u32`,
/// followed by that many bytes.
///
/// The form is checked once, in the constructor, so iterating over elements cannot fail. Like a
/// [`Tensor`](tensor_core::Tensor), it consists of a shape and shared [`Bytes`].
///
/// ```
/// use oip_types::BytesTensor;
/// use tensor_core::Shape;
///
/// let tensor = BytesTensor::from_elements(Shape::vector(2), ["ab", ""]).unwrap();
/// assert_eq!(tensor.raw()[..], [2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0]);
/// assert_eq!(tensor.iter().collect::<Vec<_>>(), [&b"ab"[..], b""]);
///
/// // The raw form must hold exactly as many elements as the shape says.
/// assert!(BytesTensor::new(Shape::vector(3), tensor.raw().clone()).is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BytesTensor {
    shape: Shape,
    raw: Bytes,
}

impl BytesTensor {
    /// The size of an element's length prefix, in bytes.
    pub const LENGTH_PREFIX: usize = 4;

    /// Creates a tensor from its raw form, which is checked against the shape and not copied.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when a length or an element is truncated, or
    /// when the number of elements differs from the shape's.
    pub fn new(shape: Shape, raw: Bytes) -> Result<Self, ServiceError> {
        let mut found: u64 = 0;
        let mut rest = &raw[..];
        while !rest.is_empty() {
            let cut_off = |what: &str, expected: usize, left: usize| {
                ServiceError::invalid(format!(
                    "BYTES element {found} is truncated at byte {}: expected {expected} bytes of {what}, \
                     found {left}",
                    raw.len() - left,
                ))
            };
            let Some((prefix, after)) = rest.split_first_chunk::<4>() else {
                return Err(cut_off("length", Self::LENGTH_PREFIX, rest.len()));
            };
            let len = u32::from_le_bytes(*prefix) as usize;
            rest = after
                .get(len..)
                .ok_or_else(|| cut_off("data", len, after.len()))?;
            found += 1;
        }
        let expected = shape.element_count();
        if found != expected {
            return Err(ServiceError::invalid(format!(
                "expected {expected} BYTES elements for shape {shape}, found {found}"
            )));
        }
        Ok(Self { shape, raw })
    }

    /// Encodes elements into the raw form.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the number of elements differs from the
    /// shape's, or an element is 4 GiB or longer.
    pub fn from_elements<E: AsRef<[u8]>>(
        shape: Shape,
        elements: impl IntoIterator<Item = E>,
    ) -> Result<Self, ServiceError> {
        let mut raw = Vec::new();
        for element in elements {
            Self::push_element(&mut raw, element.as_ref())?;
        }
        Self::new(shape, raw.into())
    }

    /// Appends one element in the raw form.
    pub(crate) fn push_element(raw: &mut Vec<u8>, element: &[u8]) -> Result<(), ServiceError> {
        let len = u32::try_from(element.len()).map_err(|_| {
            ServiceError::invalid(format!(
                "a BYTES element of {} bytes is longer than 4 GiB",
                element.len()
            ))
        })?;
        raw.put_u32_le(len);
        raw.extend_from_slice(element);
        Ok(())
    }

    /// Returns the dimensions of the tensor.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the elements in the protocol's raw form.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Converts the tensor into its raw form.
    #[must_use]
    pub fn into_raw(self) -> Bytes {
        self.raw
    }

    /// Returns the elements in row-major order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.ranges().map(|range| &self.raw[range])
    }

    /// Returns the elements in row-major order, each sharing the tensor's bytes.
    pub fn elements(&self) -> impl Iterator<Item = Bytes> + '_ {
        self.ranges().map(|range| self.raw.slice(range))
    }

    /// Creates a tensor from parts that the caller has already checked.
    pub(crate) fn new_unchecked(shape: Shape, raw: Bytes) -> Self {
        debug_assert!(Self::new(shape.clone(), raw.clone()).is_ok());
        Self { shape, raw }
    }

    /// Returns the byte range of each element in the raw form.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let prefix = self.raw.get(at..)?.first_chunk::<4>()?;
            let start = at + Self::LENGTH_PREFIX;
            at = start + u32::from_le_bytes(*prefix) as usize;
            Some(start..at)
        })
    }
}

/// Prints only the shape: elements may be large and private.
impl fmt::Debug for BytesTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BytesTensor(BYTES{})", self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rejects raw forms that are truncated or do not match the shape.
    #[test]
    fn cut_and_lying_lengths_are_refused() {
        let one = Shape::vector(1);
        for (raw, message) in [
            (
                &[0xff, 0xff, 0xff, 0xff, 1][..],
                "BYTES element 0 is truncated at byte 4: expected 4294967295 bytes of data, found 1",
            ),
            (
                &[1, 0],
                "BYTES element 0 is truncated at byte 0: expected 4 bytes of length, found 2",
            ),
            (
                &[1, 0, 0, 0],
                "BYTES element 0 is truncated at byte 4: expected 1 bytes of data, found 0",
            ),
            (
                &[0, 0, 0, 0, 9],
                "BYTES element 1 is truncated at byte 4: expected 4 bytes of length, found 1",
            ),
            (&[], "expected 1 BYTES elements for shape [1], found 0"),
            (&[0; 8], "expected 1 BYTES elements for shape [1], found 2"),
        ] {
            let error = BytesTensor::new(one.clone(), Bytes::copy_from_slice(raw)).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn elements_share_the_raw_bytes() {
        let tensor = BytesTensor::from_elements(Shape::new(&[2, 1]).unwrap(), ["left", "right"]).unwrap();
        let elements: Vec<Bytes> = tensor.elements().collect();
        assert_eq!(elements, ["left", "right"]);
        assert_eq!(elements[1].as_ptr(), tensor.raw()[12..].as_ptr());
        assert_eq!(
            BytesTensor::new(Shape::vector(0), Bytes::new())
                .unwrap()
                .iter()
                .count(),
            0
        );
    }
}
