//! Zstandard blobs as they are written (Z16).

use std::io::Write;

use fmt_core::{Error, ErrorKind};
use zstd_safe::{CCtx, CParameter};

use crate::{Compression, frames::SeekTable, sink::HashingSink};

/// Compresses the bytes of one tensor after the other.
pub(crate) struct Compressor {
    context: CCtx<'static>,
    /// What makes the next frame, as far as it has come in pieces.
    gathered: Vec<u8>,
    compressed: Vec<u8>,
    /// Bytes that go into a frame of the tensor at hand.
    frame_bytes: usize,
    table: SeekTable,
}

impl Compressor {
    pub(crate) fn new() -> Result<Self, Error> {
        let context = CCtx::try_create();
        let context = context
            .ok_or_else(|| Error::new(ErrorKind::TooLarge, "memory does not suffice for a compressor"))?;
        Ok(Self {
            context,
            gathered: Vec::new(),
            compressed: Vec::new(),
            frame_bytes: 0,
            table: SeekTable::default(),
        })
    }

    /// Begins a tensor of `len` bytes.
    pub(crate) fn begin(&mut self, options: &Compression, len: u64) -> Result<(), Error> {
        let frame_bytes = if len <= Compression::WHOLE.max(options.frame_bytes) {
            len
        } else {
            options.frame_bytes
        };
        self.frame_bytes = usize::try_from(frame_bytes)
            .map_err(|_| Error::new(ErrorKind::TooLarge, "the bytes of a frame").found(frame_bytes))?;
        self.table.frames.clear();
        self.gathered.clear();
        let parameters = [
            CParameter::CompressionLevel(options.level),
            CParameter::ContentSizeFlag(true),
            CParameter::ChecksumFlag(true),
        ];
        for parameter in parameters {
            self.context.set_parameter(parameter).map_err(failed)?;
        }
        Ok(())
    }

    /// Takes the tensor's next bytes.
    pub(crate) fn write<W: Write>(
        &mut self,
        mut bytes: &[u8],
        sink: &mut HashingSink<W>,
    ) -> Result<(), Error> {
        while !bytes.is_empty() {
            let missing = self.frame_bytes - self.gathered.len();
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            bytes = rest;
            if self.gathered.is_empty() && taken.len() == self.frame_bytes {
                self.frame(taken, sink)?;
                continue;
            }
            self.gathered.extend_from_slice(taken);
            if self.gathered.len() == self.frame_bytes {
                self.gathered_frame(sink)?;
            }
        }
        Ok(())
    }

    /// Ends the tensor.
    pub(crate) fn finish<W: Write>(&mut self, sink: &mut HashingSink<W>) -> Result<(), Error> {
        // A tensor without bytes is a frame without bytes.
        if !self.gathered.is_empty() || self.table.frames.is_empty() {
            self.gathered_frame(sink)?;
        }
        if self.table.frames.len() > 1 {
            sink.write(&self.table.encode())?;
        }
        Ok(())
    }

    fn gathered_frame<W: Write>(&mut self, sink: &mut HashingSink<W>) -> Result<(), Error> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let written = self.frame(&gathered, sink);
        gathered.clear();
        self.gathered = gathered;
        written
    }

    fn frame<W: Write>(&mut self, bytes: &[u8], sink: &mut HashingSink<W>) -> Result<(), Error> {
        self.compressed.clear();
        self.compressed.reserve(zstd_safe::compress_bound(bytes.len()));
        self.context
            .compress2(&mut self.compressed, bytes)
            .map_err(failed)?;
        // Frames of a table hold 1 GiB at most, and its bound is below 2^32; a frame without a table may be larger.
        let stored = u32::try_from(self.compressed.len()).unwrap_or(u32::MAX);
        let decoded = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.table.frames.push((stored, decoded));
        sink.write(&self.compressed)
    }
}

fn failed(code: usize) -> Error {
    let what = format!("compressing failed: {}", zstd_safe::get_error_name(code));
    Error::new(ErrorKind::TooLarge, what).rule("Z16")
}
