//! What writers count: the bytes that were announced, against those that come.

use std::collections::VecDeque;

use crate::{Error, ErrorKind};

/// The tensors whose bytes are still to come, in their order.
///
/// A writer announces each tensor, cuts what it is given at the tensors' ends by [`Outstanding::take`], and fails at the end
/// unless all of it came.
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
    /// Numbers and lengths of the tensors that are not complete.
    tensors: VecDeque<(usize, u64)>,
    /// Bytes that are to come of the first of them, once it has begun.
    rest: Option<u64>,
    /// Bytes that are to come of all of them.
    bytes: u64,
}

/// Bytes of one tensor.
#[derive(Debug)]
pub struct Piece<'b> {
    /// The tensor's, as it was announced.
    pub number: usize,
    /// The next of its bytes; none for an empty tensor.
    pub bytes: &'b [u8],
    /// Whether they are its first ones.
    pub begins: bool,
    /// Whether they are its last ones.
    pub ends: bool,
}

impl Outstanding {
    /// Adds a tensor behind the others. The caller has seen to it that all lengths together fit 64 bits.
    pub fn announce(&mut self, number: usize, len: u64) {
        self.tensors.push_back((number, len));
        self.bytes = self.bytes.saturating_add(len);
    }

    /// Bytes that are still to come.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tensor that is next, and whether some of its bytes have come.
    #[must_use]
    pub fn upcoming(&self) -> Option<(usize, bool)> {
        let (number, _) = self.tensors.front()?;
        Some((*number, self.rest.is_some()))
    }

    /// Fails for more bytes than the tensors have.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`].
    pub fn admit(&self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 <= self.bytes {
            return Ok(());
        }
        let error = Error::new(ErrorKind::SizeMismatch, "more bytes than the tensors have");
        Err(error
            .expected(format_args!("at most {}", self.bytes))
            .found(bytes.len()))
    }

    /// Takes the bytes of the tensor that is next off the front of `bytes`. Empty tensors come as soon as they are next;
    /// `None` when there are no bytes for the one that is.
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

    /// Fails when bytes are missing. `name` gives the name of a tensor, if the writer still knows it.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`].
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
