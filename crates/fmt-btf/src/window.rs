//! Buffers reads of the records' headers and dimensions.

use fmt_core::{ByteSource, Error, read_range};
use tensor_core::Bytes;

/// A read buffer over the source: small where records are far apart, larger where they are close.
pub(crate) struct Window<'a> {
    source: &'a dyn ByteSource,
    bytes: Bytes,
    start: u64,
    size: u64,
}

impl<'a> Window<'a> {
    const SMALLEST: u64 = 512;
    const LARGEST: u64 = 32 << 10;

    pub(crate) fn new(source: &'a dyn ByteSource) -> Self {
        Self {
            source,
            bytes: Bytes::new(),
            start: 0,
            size: Self::SMALLEST,
        }
    }

    /// Returns `len` bytes at offset `at`, which must be within the source; `what` describes the bytes in
    /// errors.
    pub(crate) fn get(&mut self, at: u64, len: u64, what: &str) -> Result<&[u8], Error> {
        let end = self.start + self.bytes.len() as u64;
        if at < self.start || at + len > end {
            let is_close = (self.start..end + self.size).contains(&at);
            self.size = if is_close {
                (self.size * 2).min(Self::LARGEST)
            } else {
                Self::SMALLEST
            };
            let until = at.saturating_add(self.size.max(len)).min(self.source.len());
            self.bytes = read_range(self.source, at..until, what)?;
            self.start = at;
        }
        let skipped = (at - self.start) as usize;
        Ok(&self.bytes[skipped..skipped + len as usize])
    }
}
