//! The place of a GGUF file among the files of its model, which is structure and not metadata of the whole.

use fmt_core::Metadata;

/// Removes what GGUF's metadata say of a file's place among others: it is not one of them any more.
pub(crate) fn remove_split(metadata: &mut Metadata) {
    #[cfg(feature = "gguf")]
    fmt_gguf::Split::remove(metadata);
    #[cfg(not(feature = "gguf"))]
    let _ = metadata;
}
