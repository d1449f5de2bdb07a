//! Options for compressing tensors.

use fmt_core::{Error, ErrorKind};

use crate::{
    frames::SeekTable,
    rules::{LEVELS, TABLES},
};

/// Options for compressing a tensor.
///
/// Tensors of more than 4 MiB are split into frames with a table at the end, Zstandard's *seekable format*: a
/// part can be read without decoding the whole tensor, and several threads can decode one tensor.
///
/// ```
/// use fmt_zstd::Compression;
/// assert_eq!(Compression::level(9).with_frames_of(1 << 16).level, 9);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compression {
    /// Compression level, from 1 (fast) to 19 (small); default 3.
    pub level: i32,
    /// Input size of one frame in bytes, for tensors of more than 4 MiB: from 4 KiB to 1 GiB (default 1 MiB).
    pub frame_bytes: u64,
    /// Threads that compress one tensor; 0, the default, uses one per CPU, at most 16. The output is the same
    /// for any number of threads. Each thread takes the memory of two frames and their compressed bytes, at
    /// most 256 MiB in total; if two frames exceed that, only one frame is compressed at a time.
    pub threads: usize,
}

impl Compression {
    /// Tensors up to this size in bytes are not split.
    pub(crate) const WHOLE: u64 = 4 << 20;

    /// Creates options with the compression level `level` and the default frame size.
    #[must_use]
    pub fn level(level: i32) -> Self {
        Self {
            level,
            ..Self::default()
        }
    }

    /// Sets the input size of a frame in bytes.
    #[must_use]
    pub fn with_frames_of(self, frame_bytes: u64) -> Self {
        Self { frame_bytes, ..self }
    }

    /// Sets the number of threads; 0 for one per CPU.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Checks that the options are valid.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when an option is invalid.
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
