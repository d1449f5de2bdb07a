//! Parses binary fields, for the readers of all formats.

use crate::{Error, ErrorKind};

/// Reads fields from bytes sequentially, and tracks its position in the file.
///
/// Every read names its field, so that an error says which field was truncated, and where.
///
/// ```
/// use fmt_core::{Cursor, ErrorKind};
///
/// // Six bytes at offset 100 of a file.
/// let mut cursor = Cursor::new(&[1, 0, 0, 0, 7, 8], 100);
/// assert_eq!(cursor.u32("count").unwrap(), 1);
/// let error = cursor.u64("offset").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Truncated);
/// assert_eq!(error.to_string(), "offset is truncated, at byte 104: expected 8 bytes, found 2");
/// ```
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
    position: u64,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor over `bytes`, which begin at byte `position` of the file.
    #[must_use]
    pub fn new(bytes: &'a [u8], position: u64) -> Self {
        Self {
            rest: bytes,
            position,
        }
    }

    /// Returns the file position of the next byte.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of remaining bytes.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.rest.len() as u64
    }

    /// Reads the next `len` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] when fewer bytes remain.
    pub fn take(&mut self, len: u64, field: &str) -> Result<&'a [u8], Error> {
        let split = usize::try_from(len)
            .ok()
            .and_then(|len| self.rest.split_at_checked(len));
        let Some((taken, rest)) = split else {
            let error = Error::new(ErrorKind::Truncated, format!("{field} is truncated")).at(self.position);
            return Err(error.expected(format_args!("{len} bytes")).found(self.rest.len()));
        };
        self.rest = rest;
        self.position += len;
        Ok(taken)
    }

    /// Reads the next `N` bytes as an array.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] when fewer bytes remain.
    pub fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Error> {
        let taken = self.take(N as u64, field)?;
        Ok(*taken.first_chunk().unwrap_or(&[0; N]))
    }

    /// Reads the next byte.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] at the end of the bytes.
    pub fn u8(&mut self, field: &str) -> Result<u8, Error> {
        self.array(field).map(u8::from_le_bytes)
    }

    /// Reads the next four bytes as a little-endian integer.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] when fewer bytes remain.
    pub fn u32(&mut self, field: &str) -> Result<u32, Error> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// Reads the next eight bytes as a little-endian integer.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] when fewer bytes remain.
    pub fn u64(&mut self, field: &str) -> Result<u64, Error> {
        self.array(field).map(u64::from_le_bytes)
    }
}
