//! What errors name as the broken rule.

/// The rule that frames are well-formed, within the window, and hold what is expected.
pub const FRAMES: &str = "zstd";
/// The rule that a table of frames fits the frames.
pub const TABLES: &str = "zstd-table";
/// The rule of which levels of compression there are.
pub const LEVELS: &str = "zstd-level";
/// The rule that decoded bytes are within the limits and fit into memory.
pub const MEMORY: &str = "memory";
/// The rule that bytes have the checksum that is claimed.
pub const CHECKSUMS: &str = "checksum";
/// The rule that booleans are 0 or 1.
pub const BOOLEANS: &str = "boolean";
