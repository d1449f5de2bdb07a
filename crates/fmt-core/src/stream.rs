//! A tensor's bytes, one part after the other: memory stays small however large the tensor is.

use std::ops::Range;

use bytes::Bytes;

use crate::{ByteSource, Error, read_into};

/// A dense tensor's bytes, row-major and little-endian, from front to back.
///
/// Whether they fit their checksum is known at the end: the call that reaches it fails when they do not.
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
    /// Copies the next bytes to the front of `out` and returns how many they are: all that fit, or all that are left.
    /// The length of `out` is a multiple of [`TENSOR_STREAM_UNIT`].
    ///
    /// # Errors
    /// As [`TensorReader::tensor`](crate::TensorReader::tensor). The stream is of no use afterwards.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error>;
}

/// Buffers for a [`TensorStream`] are multiples of so many bytes, so that no element of any dtype is cut in two.
pub const TENSOR_STREAM_UNIT: usize = 16;

/// Bytes in memory as a stream.
#[derive(Debug)]
pub struct BytesStream(Bytes);

impl BytesStream {
    /// Of these bytes.
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

/// Bytes of a source as a stream, with nothing to check them against.
pub struct SourceStream<'a> {
    source: &'a dyn ByteSource,
    rest: Range<u64>,
}

impl<'a> SourceStream<'a> {
    /// Of these bytes of a source.
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
