//! Rules that errors name.

/// Frames are well-formed, within the window limit, and have the expected content size.
pub const FRAMES: &str = "zstd";
/// A frame table matches the frames.
pub const TABLES: &str = "zstd-table";
/// Valid compression levels.
pub const LEVELS: &str = "zstd-level";
/// Decoded bytes are within the limits and fit into memory.
pub const MEMORY: &str = "memory";
/// Bytes match their checksum.
pub const CHECKSUMS: &str = "checksum";
/// Booleans are 0 or 1.
pub const BOOLEANS: &str = "boolean";
