//! Where bytes go, and how far that has come.

use std::io::Write;

use fmt_core::{Error, ErrorKind};

use crate::{checksum::Hasher, layout::MAGIC};

pub(crate) struct Sink<W> {
    pub(crate) out: W,
    pub(crate) position: u64,
    /// Hashes what is written, while there is one.
    pub(crate) hasher: Option<Hasher>,
    /// Nobody knows how much of what was to be written arrived.
    has_failed: bool,
}

/// Bytes that are hashed and written at a time, so that they are still in the cache. No fewer than what buffered files
/// gather, which pass such pieces on as they are.
const CHUNK: usize = 1 << 20;

impl<W: Write> Sink<W> {
    pub(crate) fn new(out: W, position: u64) -> Self {
        Self {
            out,
            position,
            hasher: None,
            has_failed: false,
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(mut hasher) = self.hasher.take() else {
            return self.write_piece(bytes);
        };
        for piece in bytes.chunks(CHUNK) {
            hasher.update(piece);
            self.write_piece(piece)?;
        }
        self.hasher = Some(hasher);
        Ok(())
    }

    fn write_piece(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.has_failed {
            return Err(
                Error::new(ErrorKind::Io, "the file is incomplete since writing failed").at(self.position),
            );
        }
        self.out.write_all(bytes).map_err(|error| {
            self.has_failed = true;
            Error::io("the file cannot be written", error).at(self.position)
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes the magic if nothing has been written.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        if self.position == 0 {
            self.write_piece(&MAGIC)?;
        }
        Ok(())
    }

    /// Writes zeros up to the next multiple of `alignment`.
    pub(crate) fn pad(&mut self, alignment: u64) -> Result<(), Error> {
        const ZEROS: [u8; 4096] = [0; 4096];
        self.begin()?;
        let mut gap = self.position.wrapping_neg() % alignment;
        while gap > 0 {
            let len = ZEROS.len().min(usize::try_from(gap).unwrap_or(ZEROS.len()));
            self.write_piece(&ZEROS[..len])?;
            gap -= len as u64;
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.out
            .flush()
            .map_err(|error| Error::io("the file cannot be written", error).at(self.position))
    }
}
