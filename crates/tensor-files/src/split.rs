//! Removes GGUF shard numbers, which describe one shard and do not belong in the metadata of the merged file.

use fmt_core::Metadata;

/// Removes GGUF's shard numbers from metadata, so that the merged file is not mistaken for a shard.
pub(crate) fn remove_split(metadata: &mut Metadata) {
    #[cfg(feature = "gguf")]
    fmt_gguf::Split::remove(metadata);
    #[cfg(not(feature = "gguf"))]
    let _ = metadata;
}
