//! Options of the writer.

use fmt_core::Limits;

/// Options for writing a file.
///
/// ```
/// use fmt_tbuf::WriteOptions;
/// let pages = WriteOptions { alignment: 4096, ..WriteOptions::default() };
/// assert_eq!(pages.limits.rank, 64);
/// ```
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Alignment of data: a power of two up to [`WriteOptions::MAX_ALIGNMENT`] (default 64).
    ///
    /// With 1, tensors and index are packed, as in the reference implementation.
    pub alignment: u32,
    /// Limits of the expected readers: a file that they would refuse is not written.
    pub limits: Limits,
}

impl WriteOptions {
    /// The largest alignment: 64 KiB, the largest page of common systems.
    pub const MAX_ALIGNMENT: u32 = 64 << 10;
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            alignment: 64,
            limits: Limits::default(),
        }
    }
}
