//! How tensors are compressed.

use fmt_core::{Error, ErrorKind};

use crate::{
    frames::SeekTable,
    rules::{LEVELS, TABLES},
};

/// How a tensor is compressed.
///
/// Tensors of more than 4 MiB are cut into frames of their own with a table at the end, the *seekable format* of
/// Zstandard: parts can be read without the rest, and several processors can decode one tensor.
///
/// ```
/// use fmt_zstd::Compression;
/// assert_eq!(Compression::level(9).with_frames_of(1 << 16).level, 9);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compression {
    /// From 1, fast, to 19, small (3).
    pub level: i32,
    /// Bytes that go into one frame of a tensor of more than 4 MiB: from 4 KiB to 1 GiB (1 MiB).
    pub frame_bytes: u64,
    /// Threads that make the frames of one tensor; 0, the default, for as many as the machine has processors, 16 at most.
    /// The bytes that are written are the same for any number. Memory is that of two frames and their compressed bytes
    /// for each thread, 256 MiB at most, or one frame where that does not suffice for two.
    pub threads: usize,
}

impl Compression {
    /// Bytes of a tensor that are not worth being cut.
    pub(crate) const WHOLE: u64 = 4 << 20;

    /// With this level, and frames as usual.
    #[must_use]
    pub fn level(level: i32) -> Self {
        Self {
            level,
            ..Self::default()
        }
    }

    /// With this many bytes in a frame.
    #[must_use]
    pub fn with_frames_of(self, frame_bytes: u64) -> Self {
        Self { frame_bytes, ..self }
    }

    /// With this many threads; 0 for as many as the machine has processors.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Whether there is such a compression.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`].
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=19).contains(&self.level) {
            let error = Error::new(ErrorKind::Unsupported, "the level of compression").rule(LEVELS);
            return Err(error.expected("1 to 19").found(self.level));
        }
        if !(4096..=SeekTable::MAX_FRAME).contains(&self.frame_bytes) {
            let error = Error::new(ErrorKind::Unsupported, "the bytes of a frame").rule(TABLES);
            return Err(error
                .expected(format_args!("4096 to {}", SeekTable::MAX_FRAME))
                .found(self.frame_bytes));
        }
        Ok(())
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self {
            level: 3,
            frame_bytes: 1 << 20,
            threads: 0,
        }
    }
}
