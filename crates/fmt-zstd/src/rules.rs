//! Names of the rules that errors cite; format crates rename them.

/// The rule that frames are well-formed, within the window limit, and have the expected content size.
pub const FRAMES: &str = "zstd";
/// The rule that a frame table matches the frames.
pub const TABLES: &str = "zstd-table";
/// The rule about valid compression levels.
pub const LEVELS: &str = "zstd-level";
/// The rule that decoded bytes are within the limits and fit into memory.
pub const MEMORY: &str = "memory";
/// The rule that bytes match their checksum.
pub const CHECKSUMS: &str = "checksum";
/// The rule that the bytes of booleans are 0 or 1.
pub const BOOLEANS: &str = "boolean";
