//! A counting sink that can be shut.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fmt_core::Error;

/// A writer that counts bytes and records failure.
///
/// After a failure, or when shut, it silently discards bytes: the crate `zip` finishes an archive even when
/// its writer is dropped, and nothing must follow failed or abandoned output.
pub(crate) struct Sink<W> {
    out: W,
    position: u64,
    valve: Valve,
}

/// A handle that shuts a [`Sink`] from outside.
#[derive(Clone, Default)]
pub(crate) struct Valve(Arc<AtomicBool>);

impl Valve {
    pub(crate) fn shut(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails when the sink is shut.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) {
            let error = io::Error::other("the file is incomplete since writing failed");
            return Err(Error::io("the file cannot be written", error));
        }
        Ok(())
    }
}

impl<W: Write> Sink<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            position: 0,
            valve: Valve::default(),
        }
    }

    pub(crate) fn valve(&self) -> Valve {
        self.valve.clone()
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let at = self.position;
        self.valve.check()?;
        self.write_all(bytes)
            .map_err(|error| Error::io("the file cannot be written", error).at(at))
    }

    /// Flushes, and returns the file's length.
    pub(crate) fn flush(&mut self) -> Result<u64, Error> {
        self.valve.check()?;
        let flushed = self.out.flush();
        flushed.map_err(|error| Error::io("the file cannot be written", error).at(self.position))?;
        Ok(self.position)
    }
}

impl<W: Write> Write for Sink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.valve.check().is_err() || bytes.is_empty() {
            return Ok(bytes.len());
        }
        let written = self.out.write(bytes);
        match &written {
            Ok(0) => self.valve.shut(),
            Ok(written) => self.position += *written as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.valve.shut(),
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.valve.check().is_err() {
            return Ok(());
        }
        self.out.flush()
    }
}
