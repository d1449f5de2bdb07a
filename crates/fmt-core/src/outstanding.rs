//! Tracks the bytes that a writer still expects for the planned tensors.

use std::collections::VecDeque;

use crate::{Error, ErrorKind};

/// The tensors whose bytes are still expected, in order.
///
/// A writer announces each tensor, splits its input at tensor boundaries with [`Outstanding::take`], and
/// finally fails unless all bytes have arrived.
///
/// ```
/// use fmt_core::Outstanding;
///
/// let mut outstanding = Outstanding::default();
/// outstanding.announce(0, 2);
/// outstanding.announce(1, 0);
/// outstanding.announce(2, 3);
/// let mut bytes = &b"abcd"[..];
/// outstanding.admit(bytes)?;
/// let mut pieces = Vec::new();
/// while let Some(piece) = outstanding.take(&mut bytes) {
///     pieces.push((piece.number, piece.bytes, piece.begins, piece.ends));
/// }
/// assert_eq!(pieces, [(0, &b"ab"[..], true, true), (1, b"", true, true), (2, b"cd", true, false)]);
/// let missing = outstanding.complete(|number| Some(number.to_string())).unwrap_err();
/// assert_eq!(missing.to_string(), "tensor '2': bytes of the tensor are missing: expected 3, found 2");
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Outstanding {
    /// Indices and lengths of the incomplete tensors.
    tensors: VecDeque<(usize, u64)>,
    /// Remaining bytes of the first incomplete tensor, once some of its bytes have arrived.
    rest: Option<u64>,
    /// Remaining bytes of all incomplete tensors.
    bytes: u64,
}

/// A piece of a tensor's bytes.
#[derive(Debug)]
pub struct Piece<'b> {
    /// The tensor's index, as announced.
    pub number: usize,
    /// The next bytes of the tensor; empty for an empty tensor.
    pub bytes: &'b [u8],
    /// Whether this is the tensor's first piece.
    pub begins: bool,
    /// Whether this is the tensor's last piece.
    pub ends: bool,
}

impl Outstanding {
    /// Appends a tensor. The caller ensures that the total length fits 64 bits.
    pub fn announce(&mut self, number: usize, len: u64) {
        self.tensors.push_back((number, len));
        self.bytes = self.bytes.saturating_add(len);
    }

    /// Returns the number of bytes that are still expected.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the index of the next tensor, and whether some of its bytes have arrived.
    #[must_use]
    pub fn upcoming(&self) -> Option<(usize, bool)> {
        let (number, _) = self.tensors.front()?;
        Some((*number, self.rest.is_some()))
    }

    /// Checks that `bytes` is not longer than the number of bytes that are still expected.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when `bytes` is longer.
    pub fn admit(&self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 <= self.bytes {
            return Ok(());
        }
        let error = Error::new(ErrorKind::SizeMismatch, "more bytes than the tensors have");
        Err(error
            .expected(format_args!("at most {}", self.bytes))
            .found(bytes.len()))
    }

    /// Splits the next tensor's bytes off the front of `bytes`. An empty tensor yields one empty piece.
    /// Returns `None` if no tensor is left, or if `bytes` is empty and the next tensor is not.
    pub fn take<'b>(&mut self, bytes: &mut &'b [u8]) -> Option<Piece<'b>> {
        let (number, len) = *self.tensors.front()?;
        if len > 0 && bytes.is_empty() {
            return None;
        }
        let begins = self.rest.is_none();
        let rest = self.rest.unwrap_or(len);
        let taken = usize::try_from(rest).map_or(bytes.len(), |rest| rest.min(bytes.len()));
        let (now, later) = bytes.split_at(taken);
        *bytes = later;
        self.bytes -= taken as u64;
        let rest = rest - taken as u64;
        if rest == 0 {
            self.tensors.pop_front();
        }
        self.rest = (rest > 0).then_some(rest);
        Some(Piece {
            number,
            bytes: now,
            begins,
            ends: rest == 0,
        })
    }

    /// Checks that all bytes have arrived. `name` returns a tensor's name for the error, or `None` if the
    /// writer no longer has it.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes are missing.
    pub fn complete(&self, name: impl Fn(usize) -> Option<String>) -> Result<(), Error> {
        let Some((number, len)) = self.tensors.iter().find(|(_, len)| *len > 0) else {
            return Ok(());
        };
        let error = Error::new(ErrorKind::SizeMismatch, "bytes of the tensor are missing");
        let error = error.expected(len).found(len - self.rest.unwrap_or(*len));
        Err(match name(*number) {
            Some(name) => error.of_tensor(&name),
            None => error,
        })
    }
}
