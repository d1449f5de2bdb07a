//! Decodes NumPy's fixed-width strings, and finds the dtype for byte strings of a given length.

use std::borrow::Cow;

use fmt_core::{Error, ErrorKind, OpaqueDType};

/// Decodes elements of a string array: all have the same width, padded with zeros. As in NumPy, trailing
/// zeros are not part of the string.
///
/// ```
/// use fmt_core::OpaqueDType;
/// use fmt_npy::TextWidth;
///
/// // The dtype `S3` has bytes.
/// let width = TextWidth::of(&OpaqueDType::new("S3", 1, 3)).unwrap();
/// assert_eq!(&*width.text(b"ab\0")?, b"ab");
/// // The dtype `U2` has code points of four bytes, which become UTF-8.
/// let width = TextWidth::of(&OpaqueDType::new("U2", 1, 8)).unwrap();
/// assert_eq!(&*width.text(b"\xe9\0\0\0\0\0\0\0")?, "é".as_bytes());
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWidth {
    bytes: usize,
    has_code_points: bool,
}

impl TextWidth {
    /// Creates a decoder for the dtypes `S` and `U` with a width, as this crate's readers return them.
    #[must_use]
    pub fn of(dtype: &OpaqueDType) -> Option<Self> {
        let (kind, width) = dtype.name().split_at_checked(1)?;
        let unit = match kind {
            "S" => 1,
            "U" => 4,
            _ => return None,
        };
        let bytes = width.parse::<u32>().ok()?.checked_mul(unit)?;
        let is_same = (dtype.block_elements(), dtype.block_bytes()) == (1, bytes);
        is_same.then_some(Self {
            bytes: bytes as usize,
            has_code_points: unit == 4,
        })
    }

    /// Returns the dtype for byte strings up to a length; `None` when it exceeds 32 bits.
    #[must_use]
    pub fn dtype_for(longest: usize) -> Option<OpaqueDType> {
        let width = u32::try_from(longest.max(1)).ok()?;
        Some(OpaqueDType::new(format!("S{width}"), 1, width))
    }

    /// Returns the size of an element in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Decodes an element of [`TextWidth::bytes`] bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for an invalid code point.
    pub fn text<'e>(&self, element: &'e [u8]) -> Result<Cow<'e, [u8]>, Error> {
        let end = element
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        if !self.has_code_points {
            return Ok(element[..end].into());
        }
        let (points, _) = element[..end.next_multiple_of(4).min(element.len())].as_chunks::<4>();
        let mut text = String::with_capacity(points.len());
        for point in points {
            let point = u32::from_le_bytes(*point);
            text.push(char::from_u32(point).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "a string has an invalid code point")
                    .found(format_args!("{point:#x}"))
            })?);
        }
        Ok(text.into_bytes().into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn texts_are_what_numpy_makes_of_them() {
        let text = |name: &str, size: u32, element: &[u8]| {
            let width = TextWidth::of(&OpaqueDType::new(name, 1, size)).unwrap();
            assert_eq!(width.bytes(), element.len());
            width.text(element).map(Cow::into_owned)
        };
        assert_eq!(text("S3", 3, b"\0\0\0").unwrap(), b"");
        assert_eq!(text("S3", 3, b"\0a\0").unwrap(), b"\0a");
        assert_eq!(text("S2", 2, b"\xff\xfe").unwrap(), b"\xff\xfe");
        assert_eq!(text("U1", 4, &[0; 4]).unwrap(), b"");
        assert_eq!(
            text("U2", 8, &[0x00, 0xF6, 1, 0, 0, 1, 0, 0]).unwrap(),
            "\u{1F600}\u{100}".as_bytes()
        );
        for wrong in [[0, 0xD8, 0, 0], [0, 0, 0x11, 0], [0, 0, 0, 0x80]] {
            assert_eq!(text("U1", 4, &wrong).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        for (name, size) in [
            ("C64", 8),
            ("S3", 4),
            ("U3", 3),
            ("U", 4),
            ("S-1", 1),
            ("", 1),
            ("U1073741824", 1),
        ] {
            assert_eq!(TextWidth::of(&OpaqueDType::new(name, 1, size)), None, "{name}");
        }
        assert_eq!(TextWidth::dtype_for(0), TextWidth::dtype_for(1));
        assert_eq!(TextWidth::dtype_for(1 << 33), None);
    }
}
