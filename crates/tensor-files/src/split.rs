//! The shard numbers of a GGUF file, which are structure rather than metadata of the whole.

use fmt_core::Metadata;

/// Removes GGUF's shard numbers from metadata, so that the result is no longer a shard.
pub(crate) fn remove_split(metadata: &mut Metadata) {
    #[cfg(feature = "gguf")]
    fmt_gguf::Split::remove(metadata);
    #[cfg(not(feature = "gguf"))]
    let _ = metadata;
}
