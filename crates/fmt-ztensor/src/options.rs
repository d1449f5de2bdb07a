//! Options of the writer, for a whole file and for single tensors.

use fmt_core::{Error, ErrorKind, Limits};

use fmt_zstd::{ChecksumKind, Compression};

use crate::{CustomField, layout::ALIGNMENT};

/// Options for writing a file.
///
/// ```
/// use fmt_ztensor::WriteOptions;
/// let pages = WriteOptions { alignment: 4096, ..WriteOptions::default() };
/// assert!(!pages.strict_spec);
/// ```
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Storage options of tensors for which the caller passes none.
    pub tensors: TensorOptions,
    /// Alignment of data: a power of two from 64 to [`WriteOptions::MAX_ALIGNMENT`] (default 64).
    pub alignment: u64,
    /// Whether to omit the key `layout`, which the specification does not define but all published readers of
    /// version 0.1 require (Z1).
    pub strict_spec: bool,
    /// Limits of the expected readers: a file that they would reject is not written.
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

/// Storage options of a tensor: compression, checksum, byte order and custom fields.
///
/// ```
/// use fmt_ztensor::{ChecksumKind, Compression, TensorOptions};
/// let small = TensorOptions { compression: Some(Compression::level(19)), ..TensorOptions::default() };
/// assert_eq!(small.checksum, Some(ChecksumKind::Crc32c));
/// ```
#[derive(Clone, Debug)]
pub struct TensorOptions {
    /// Zstandard compression; `None`, the default, stores raw bytes, because weights hardly compress (Z17).
    pub compression: Option<Compression>,
    /// The checksum over the stored bytes ([`ChecksumKind::Crc32c`]).
    pub checksum: Option<ChecksumKind>,
    /// Whether to store elements big-endian. Cannot be combined with compression (Z7, Z8).
    pub big_endian: bool,
    /// Custom fields of the tensor, in this order.
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
