/// How much of anything a reader takes, whatever a file claims.
///
/// A declared count is checked first against what the file could physically contain, then against these.
///
/// ```
/// use fmt_core::Limits;
/// let limits = Limits { tensors: 1000, ..Limits::default() };
/// assert_eq!(limits.rank, 64);
/// ```
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of an index (256 MiB).
    pub index_bytes: u64,
    /// Tensors in one file (2,000,000).
    pub tensors: u64,
    /// Dimensions of one tensor (64, the most that a [`Shape`](tensor_core::Shape) has).
    pub rank: u64,
    /// Bytes of a name (64 KiB).
    pub name_bytes: u64,
    /// Nesting of index values that are passed over (32).
    pub depth: u64,
    /// Attributes of one tensor, or of the file itself (65,536).
    pub fields: u64,
    /// Bytes that one decompressed or converted tensor may take (4 GiB).
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

/// How a file is read.
///
/// ```
/// use fmt_core::ReadOptions;
/// let options = ReadOptions { lenient: true, ..ReadOptions::default() };
/// assert_eq!(options.limits.depth, 32);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// How much of anything is taken.
    pub limits: Limits,
    /// Take files that break rules which cannot lead to wrong data: each format's page says which.
    pub lenient: bool,
}
