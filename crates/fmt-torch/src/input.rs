//! Reads the bytes of a pickle from a source in chunks.

use std::ops::Range;

use fmt_core::{ByteSource, Error, ErrorKind, read_range};
use tensor_core::Bytes;

/// A sequential reader of part of a source.
pub(crate) struct Input<'a> {
    source: &'a dyn ByteSource,
    rest: Range<u64>,
    /// Buffered bytes, which end where `rest` begins.
    piece: Bytes,
}

impl<'a> Input<'a> {
    const PIECE: u64 = 64 << 10;

    pub(crate) fn new(source: &'a dyn ByteSource, range: Range<u64>) -> Self {
        Self {
            source,
            rest: range,
            piece: Bytes::new(),
        }
    }

    /// Returns the file offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.rest.start - self.piece.len() as u64
    }

    /// Reads the next `len` bytes; `what` describes them in errors.
    pub(crate) fn take(&mut self, len: u64, what: &str) -> Result<Bytes, Error> {
        let left = self.rest.end - self.position();
        if len > left {
            let error = Error::new(ErrorKind::Truncated, format!("{what} is truncated"));
            return Err(error
                .at(self.position())
                .rule("P2")
                .expected(format_args!("{len} bytes"))
                .found(left));
        }
        if len > self.piece.len() as u64 {
            let start = self.position();
            let end = self.rest.end.min(start.saturating_add(Self::PIECE.max(len)));
            self.piece = read_range(self.source, start..end, what)?;
            self.rest.start = end;
        }
        Ok(self.piece.split_to(len as usize))
    }

    pub(crate) fn byte(&mut self, what: &str) -> Result<u8, Error> {
        Ok(self.take(1, what)?[0])
    }

    /// Reads a little-endian number of `len` bytes, at most eight.
    pub(crate) fn number(&mut self, len: u64, what: &str) -> Result<u64, Error> {
        let bytes = self.take(len, what)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(&bytes);
        Ok(u64::from_le_bytes(word))
    }

    /// Reads a line without its terminator.
    pub(crate) fn line(&mut self, what: &str) -> Result<String, Error> {
        const LONGEST: usize = 256;
        let (at, mut line) = (self.position(), Vec::new());
        loop {
            match self.byte(what)? {
                b'\n' => break,
                byte if line.len() < LONGEST => line.push(byte),
                _ => {
                    let error = Error::new(ErrorKind::TooLarge, what).at(at).rule("P2");
                    return Err(error.expected(format_args!("at most {LONGEST} bytes")));
                }
            }
        }
        String::from_utf8(line).map_err(|_| {
            Error::new(ErrorKind::Malformed, format!("{what} is not UTF-8"))
                .at(at)
                .rule("P2")
        })
    }
}
