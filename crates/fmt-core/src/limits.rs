//! Options and limits of readers.

/// Limits on what a reader accepts, independent of what a file declares.
///
/// A declared count is first compared with what the file could physically contain, then with these limits.
///
/// ```
/// use fmt_core::Limits;
/// let limits = Limits { tensors: 1000, ..Limits::default() };
/// assert_eq!(limits.rank, 64);
/// ```
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum size of an index in bytes (256 MiB).
    pub index_bytes: u64,
    /// Maximum number of tensors in a file (2,000,000).
    pub tensors: u64,
    /// Maximum rank of a tensor (64, the maximum of a [`Shape`](tensor_core::Shape)).
    pub rank: u64,
    /// Maximum length of a name in bytes (64 KiB).
    pub name_bytes: u64,
    /// Maximum nesting depth of skipped index values (32).
    pub depth: u64,
    /// Maximum number of attributes of a tensor, or of the file itself (65,536).
    pub fields: u64,
    /// Maximum size of a decompressed or converted tensor in bytes (4 GiB).
    pub decoded_bytes: u64,
    /// Base-2 logarithm of the largest zstd window (27: 128 MiB).
    pub window_log: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            index_bytes: 256 << 20,
            tensors: 2_000_000,
            rank: 64,
            name_bytes: 64 << 10,
            depth: 32,
            fields: 1 << 16,
            decoded_bytes: 4 << 30,
            window_log: 27,
        }
    }
}

/// Options for reading a file.
///
/// ```
/// use fmt_core::ReadOptions;
/// let options = ReadOptions { lenient: true, ..ReadOptions::default() };
/// assert_eq!(options.limits.depth, 32);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Limits on what a reader accepts.
    pub limits: Limits,
    /// Whether to accept files that break rules which cannot lead to wrong data; each format's page lists
    /// them.
    pub lenient: bool,
}
