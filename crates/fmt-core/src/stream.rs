//! Streams a tensor's bytes in parts, so memory use is independent of the tensor's size.

use std::ops::Range;

use bytes::Bytes;

use crate::{ByteSource, Error, read_into};

/// A stream of a dense tensor's bytes, row-major and little-endian.
///
/// The checksum is verified at the end: the call that reaches the end fails on a mismatch.
///
/// ```
/// use fmt_core::{BytesStream, TensorStream};
///
/// let mut stream = BytesStream::new("abcdef".into());
/// let mut buffer = [0; 4];
/// assert_eq!(stream.read(&mut buffer)?, 4);
/// assert_eq!(stream.read(&mut buffer)?, 2);
/// assert_eq!(stream.read(&mut buffer)?, 0);
/// # Ok::<(), fmt_core::Error>(())
/// ```
pub trait TensorStream: Send {
    /// Copies the next bytes to the front of `out` and returns their number: `out` is filled unless the
    /// stream ends first. The length of `out` is a multiple of [`TENSOR_STREAM_UNIT`].
    ///
    /// # Errors
    /// The errors of [`TensorReader::tensor`](crate::TensorReader::tensor). The stream cannot be used
    /// afterwards.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error>;
}

/// Buffers for a [`TensorStream`] are multiples of this many bytes, so no element of any dtype is split.
pub const TENSOR_STREAM_UNIT: usize = 16;

/// A stream of bytes in memory.
#[derive(Debug)]
pub struct BytesStream(Bytes);

impl BytesStream {
    /// Creates a stream of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl TensorStream for BytesStream {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let len = out.len().min(self.0.len());
        out[..len].copy_from_slice(&self.0.split_to(len));
        Ok(len)
    }
}

/// A stream of a source's bytes, without a checksum.
pub struct SourceStream<'a> {
    source: &'a dyn ByteSource,
    rest: Range<u64>,
}

impl<'a> SourceStream<'a> {
    /// Creates a stream of a range of a source.
    #[must_use]
    pub fn new(source: &'a dyn ByteSource, range: Range<u64>) -> Self {
        source.will_read(range.clone());
        Self { source, rest: range }
    }
}

impl TensorStream for SourceStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let (at, left) = (self.rest.start, self.rest.end.saturating_sub(self.rest.start));
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        read_into(self.source, at, &mut out[..len], "the data")?;
        self.rest.start += len as u64;
        Ok(len)
    }
}
