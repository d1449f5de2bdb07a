//! Where bytes go, hashed on the way.

use std::{io::Write, thread};

use fmt_core::{Error, Sink};

use crate::{checksum::Hasher, layout::MAGIC, parallel::default_threads};

pub(crate) struct HashingSink<W> {
    sink: Sink<W>,
    /// Hashes what is written, while there is one.
    pub(crate) hasher: Option<Hasher>,
}

/// Bytes that are hashed and written at a time, so that they are still in the cache. No fewer than what buffered files
/// gather, which pass such pieces on as they are.
const CHUNK: usize = 1 << 20;
/// Bytes in one call from which on another thread hashes them meanwhile.
const WORTH_A_THREAD: usize = 8 << 20;

impl<W> HashingSink<W> {
    pub(crate) fn new(out: W, position: u64) -> Self {
        Self {
            sink: Sink::new(out, position),
            hasher: None,
        }
    }

    pub(crate) fn position(&self) -> u64 {
        self.sink.position()
    }

    pub(crate) fn into_inner(self) -> W {
        self.sink.into_inner()
    }
}

impl<W: Write> HashingSink<W> {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(mut hasher) = self.hasher.take() else {
            return self.sink.write(bytes);
        };
        if bytes.len() >= WORTH_A_THREAD && default_threads() > 1 {
            let written = thread::scope(|scope| {
                // Without another thread what it takes is dropped, and the hash is as it was.
                let hash = || hasher.update(bytes);
                let hashing = thread::Builder::new().spawn_scoped(scope, hash);
                hashing.is_ok().then(|| self.sink.write(bytes))
            });
            if let Some(written) = written {
                self.hasher = Some(hasher);
                return written;
            }
        }
        for piece in bytes.chunks(CHUNK) {
            hasher.update(piece);
            self.sink.write(piece)?;
        }
        self.hasher = Some(hasher);
        Ok(())
    }

    /// Writes the magic if nothing has been written.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        if self.position() == 0 {
            self.sink.write(&MAGIC)?;
        }
        Ok(())
    }

    /// Writes zeros up to the next multiple of `alignment`.
    pub(crate) fn pad(&mut self, alignment: u64) -> Result<(), Error> {
        self.begin()?;
        self.sink.pad_to(self.position().next_multiple_of(alignment))
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.sink.flush()
    }
}
