//! The output of a writer, with position, padding and failure state.

use std::io::Write;

use crate::{Error, ErrorKind};

/// A writer's output, with its position.
///
/// After a failure it is unknown how much was written, so every further call fails.
///
/// ```
/// use fmt_core::Sink;
///
/// let mut sink = Sink::new(Vec::new(), 0);
/// sink.write(b"abc")?;
/// sink.pad_to(8)?;
/// assert_eq!(sink.position(), 8);
/// assert_eq!(sink.into_inner(), b"abc\0\0\0\0\0");
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Sink<W> {
    out: W,
    position: u64,
    has_failed: bool,
}

impl<W> Sink<W> {
    /// Creates a sink that writes to `out`, which already has `position` bytes.
    pub fn new(out: W, position: u64) -> Self {
        Self {
            out,
            position,
            has_failed: false,
        }
    }

    /// Returns the current length of the file in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Makes every further call fail, because the written data is wrong.
    pub fn fail(&mut self) {
        self.has_failed = true;
    }

    /// Returns the inner writer without flushing it.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Checks that no earlier call failed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when an earlier call failed.
    pub fn check(&self) -> Result<(), Error> {
        if self.has_failed {
            let error = Error::new(ErrorKind::Io, "the file is incomplete since writing failed");
            return Err(error.at(self.position));
        }
        Ok(())
    }
}

impl<W: Write> Sink<W> {
    /// Writes all bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when writing fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        self.out.write_all(bytes).map_err(|error| {
            self.has_failed = true;
            Error::io("the file cannot be written", error).at(self.position)
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeros up to the position `place`. Does nothing if the sink is already beyond this position.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when writing fails.
    pub fn pad_to(&mut self, place: u64) -> Result<(), Error> {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.position < place {
            let gap = usize::try_from(place - self.position).unwrap_or(ZEROS.len());
            self.write(&ZEROS[..gap.min(ZEROS.len())])?;
        }
        Ok(())
    }

    /// Flushes the inner writer.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when flushing fails.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.check()?;
        self.out
            .flush()
            .map_err(|error| Error::io("the file cannot be written", error).at(self.position))
    }
}
