//! Where bytes go, hashed on the way.

use std::{io::Write, thread};

use fmt_core::{Error, Sink};

use crate::{Claim, Hasher, parallel::default_threads};

/// A [`Sink`] that computes the checksum of what is written to it, if one is wanted.
///
/// ```
/// use fmt_zstd::{ChecksumKind, Hasher, HashingSink};
///
/// let mut sink = HashingSink::new(Vec::new(), 0);
/// sink.write(b"magic")?;
/// sink.hash(Some(Hasher::new(ChecksumKind::Crc32c)));
/// sink.write(b"123456789")?;
/// assert_eq!(sink.take_claim().unwrap().to_string(), "crc32c:0xE3069283");
/// # Ok::<(), fmt_core::Error>(())
/// ```
pub struct HashingSink<W> {
    sink: Sink<W>,
    /// Hashes what is written, while there is one.
    hasher: Option<Hasher>,
}

/// Bytes that are hashed and written at a time, so that they are still in the cache. No fewer than what buffered files
/// gather, which pass such pieces on as they are.
const CHUNK: usize = 1 << 20;
/// Bytes in one call from which on another thread hashes them meanwhile.
const WORTH_A_THREAD: usize = 8 << 20;

impl<W> HashingSink<W> {
    /// Bytes go to `out`, which has `position` bytes already.
    pub fn new(out: W, position: u64) -> Self {
        Self {
            sink: Sink::new(out, position),
            hasher: None,
        }
    }

    /// How many bytes the file has.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.sink.position()
    }

    /// Gives the sink back, which has not been flushed.
    pub fn into_inner(self) -> W {
        self.sink.into_inner()
    }

    /// Makes every further call fail, since what was written is wrong.
    pub fn fail(&mut self) {
        self.sink.fail();
    }

    /// Fails when an earlier call has failed.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`].
    pub fn check(&self) -> Result<(), Error> {
        self.sink.check()
    }

    /// Hashes what is written from here on.
    pub fn hash(&mut self, hasher: Option<Hasher>) {
        self.hasher = hasher;
    }

    /// The checksum of what was written since [`HashingSink::hash`].
    pub fn take_claim(&mut self) -> Option<Claim> {
        self.hasher.take().map(Hasher::finish)
    }
}

impl<W: Write> HashingSink<W> {
    /// Writes all of the bytes.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
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

    /// Writes zeros up to a place; nothing when it lies behind.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`].
    pub fn pad_to(&mut self, place: u64) -> Result<(), Error> {
        self.sink.pad_to(place)
    }

    /// Flushes what it writes to.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.sink.flush()
    }
}
