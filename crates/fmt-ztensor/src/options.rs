use fmt_core::{Error, ErrorKind, Limits};

use crate::{ChecksumKind, CustomField, frames::SeekTable, layout::ALIGNMENT};

/// How a file is written.
///
/// ```
/// use fmt_ztensor::WriteOptions;
/// let pages = WriteOptions { alignment: 4096, ..WriteOptions::default() };
/// assert!(!pages.strict_spec);
/// ```
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// How tensors are stored that are begun without options of their own.
    pub tensors: TensorOptions,
    /// What offsets of data are multiples of: a power of two from 64 to [`WriteOptions::MAX_ALIGNMENT`] (64).
    pub alignment: u64,
    /// Leave out the key `layout`, which is not in the specification, and without which all published readers of
    /// version 0.1 refuse a file (Z1).
    pub strict_spec: bool,
    /// What readers are expected to take: a file that they would refuse is not written.
    pub limits: Limits,
}

impl WriteOptions {
    /// The largest alignment: 64 KiB, the largest page of common systems.
    pub const MAX_ALIGNMENT: u64 = 64 << 10;

    pub(crate) fn check(&self) -> Result<(), Error> {
        let alignment = self.alignment;
        if !alignment.is_power_of_two() || !(ALIGNMENT..=Self::MAX_ALIGNMENT).contains(&alignment) {
            let error = Error::new(ErrorKind::Unsupported, "the alignment of data").rule("Z10");
            let expected = format!("a power of two from {ALIGNMENT} to {}", Self::MAX_ALIGNMENT);
            return Err(error.expected(expected).found(alignment));
        }
        Ok(())
    }
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            tensors: TensorOptions::default(),
            alignment: ALIGNMENT,
            strict_spec: false,
            limits: Limits::default(),
        }
    }
}

/// How a tensor is stored.
///
/// ```
/// use fmt_ztensor::{ChecksumKind, Compression, TensorOptions};
/// let small = TensorOptions { compression: Some(Compression::level(19)), ..TensorOptions::default() };
/// assert_eq!(small.checksum, Some(ChecksumKind::Crc32c));
/// ```
#[derive(Clone, Debug)]
pub struct TensorOptions {
    /// Compressed as Zstandard, or as it is (`None`, the default: weights hardly become smaller, Z17).
    pub compression: Option<Compression>,
    /// The checksum over the stored bytes ([`ChecksumKind::Crc32c`]).
    pub checksum: Option<ChecksumKind>,
    /// Stored most significant byte first. Not together with compression (Z7, Z8).
    pub big_endian: bool,
    /// What else to say about the tensor, in this order.
    pub fields: Vec<CustomField>,
}

impl Default for TensorOptions {
    fn default() -> Self {
        Self {
            compression: None,
            checksum: Some(ChecksumKind::Crc32c),
            big_endian: false,
            fields: Vec::new(),
        }
    }
}

/// How a tensor is compressed.
///
/// Tensors of more than 4 MiB are cut into frames of their own with a table at the end, the *seekable format* of
/// Zstandard: parts can be read without the rest, and several processors can decode one tensor (Z16).
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

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(1..=19).contains(&self.level) {
            let error = Error::new(ErrorKind::Unsupported, "the level of compression").rule("Z17");
            return Err(error.expected("1 to 19").found(self.level));
        }
        if !(4096..=SeekTable::MAX_FRAME).contains(&self.frame_bytes) {
            let error = Error::new(ErrorKind::Unsupported, "the bytes of a frame").rule("Z16");
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
