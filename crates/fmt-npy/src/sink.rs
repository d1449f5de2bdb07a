use std::io::{self, Write};

use fmt_core::Error;

/// Where bytes go, how many have gone, and whether that went well.
pub(crate) struct Sink<W> {
    out: W,
    position: u64,
    /// Nobody knows how much of what was to be written arrived.
    has_failed: bool,
}

impl<W: Write> Sink<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            position: 0,
            has_failed: false,
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let at = self.position;
        self.write_all(bytes)
            .map_err(|error| Error::io("the file cannot be written", error).at(at))
    }

    /// Flushes, and says how long the file is.
    pub(crate) fn flush(&mut self) -> Result<u64, Error> {
        let flushed = Write::flush(self);
        flushed.map_err(|error| Error::io("the file cannot be written", error).at(self.position))?;
        Ok(self.position)
    }
}

impl<W: Write> Write for Sink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.has_failed {
            return Err(io::Error::other("the file is incomplete since writing failed"));
        }
        match self.out.write(bytes) {
            Ok(written) => {
                self.position += written as u64;
                Ok(written)
            }
            Err(error) => {
                self.has_failed = error.kind() != io::ErrorKind::Interrupted;
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
