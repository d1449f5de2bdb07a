//! A sink that computes the checksum of the written bytes.

use std::{io::Write, thread};

use fmt_core::{Error, Sink};

use crate::{Claim, Hasher, parallel::default_threads};

/// A [`Sink`] that can compute the checksum of the bytes written.
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
    /// Hasher of the bytes written; `None` if they are not hashed.
    hasher: Option<Hasher>,
}

/// Bytes hashed and written at once, so that they are still in the cache. Pieces of at least the size of a
/// file buffer are written without being copied into it.
const CHUNK: usize = 1 << 20;
/// Minimum size of a write for hashing on another thread in parallel.
const WORTH_A_THREAD: usize = 8 << 20;

impl<W> HashingSink<W> {
    /// Creates a sink that writes to `out`, which already has `position` bytes.
    pub fn new(out: W, position: u64) -> Self {
        Self {
            sink: Sink::new(out, position),
            hasher: None,
        }
    }

    /// Returns the current length of the file in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.sink.position()
    }

    /// Returns the inner writer without flushing it.
    pub fn into_inner(self) -> W {
        self.sink.into_inner()
    }

    /// Makes every further call fail, because the written data is wrong.
    pub fn fail(&mut self) {
        self.sink.fail();
    }

    /// Checks that no earlier call failed.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`] when an earlier call failed.
    pub fn check(&self) -> Result<(), Error> {
        self.sink.check()
    }

    /// Sets the hasher for all bytes written after this call; `None` ends hashing.
    pub fn hash(&mut self, hasher: Option<Hasher>) {
        self.hasher = hasher;
    }

    /// Returns the checksum of the bytes written since the last call of [`HashingSink::hash`].
    pub fn take_claim(&mut self) -> Option<Claim> {
        self.hasher.take().map(Hasher::finish)
    }
}

impl<W: Write> HashingSink<W> {
    /// Writes all bytes.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`] when writing fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(mut hasher) = self.hasher.take() else {
            return self.sink.write(bytes);
        };
        if bytes.len() >= WORTH_A_THREAD && default_threads() > 1 {
            let written = thread::scope(|scope| {
                // If the thread cannot be started, its closure is dropped without effect on the hash.
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

    /// Writes zeros up to the position `place`. Does nothing if the sink is already beyond this position.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`] when writing fails.
    pub fn pad_to(&mut self, place: u64) -> Result<(), Error> {
        self.sink.pad_to(place)
    }

    /// Flushes the inner writer.
    ///
    /// # Errors
    /// [`fmt_core::ErrorKind::Io`] when flushing fails.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.sink.flush()
    }
}
