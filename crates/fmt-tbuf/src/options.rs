use fmt_core::Limits;

/// How a file is written.
///
/// ```
/// use fmt_tbuf::WriteOptions;
/// let pages = WriteOptions { alignment: 4096, ..WriteOptions::default() };
/// assert_eq!(pages.limits.rank, 64);
/// ```
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// What offsets of data are multiples of: a power of two up to [`WriteOptions::MAX_ALIGNMENT`] (64).
    ///
    /// 1 puts tensors and index back to back, as the format's first implementation does (T3).
    pub alignment: u32,
    /// What readers are expected to take: a file that they would refuse is not written.
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
