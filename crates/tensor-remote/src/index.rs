//! Guesses where a file has its index, which is requested first.

use std::ops::Range;

/// The location of a file's index, and how many bytes to request there first.
///
/// A guess that is too small costs another request; one that is too large costs some bytes.
///
/// ```
/// use tensor_remote::IndexPlace;
///
/// assert_eq!(IndexPlace::of_name("model.safetensors"), IndexPlace::Front(256 << 10));
/// assert!(matches!(IndexPlace::of_name("model.zt"), IndexPlace::End(_)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexPlace {
    /// The index is at the start, within this many bytes.
    Front(u64),
    /// At the end, within this many bytes or, if more, the last 8192nd part of the file (at most 4 MiB):
    /// larger files have more tensors.
    End(u64),
}

/// Bytes requested at the start of a file with its index at the end. The response shows the file's length,
/// and these bytes its format.
const BEGINNING: u64 = 32 << 10;
/// Assumed ratio of file size to index size.
const DATA_PER_INDEX: u64 = 8192;
/// Maximum bytes requested at the end because of the file's size.
const LARGEST_END: u64 = 4 << 20;

impl IndexPlace {
    /// Guesses by file name.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        match extension.to_ascii_lowercase().as_str() {
            // The header contains the tokenizer's vocabulary.
            "gguf" => Self::Front(4 << 20),
            "npy" | "btf" => Self::Front(64 << 10),
            "zt" | "ztensor" | "tbuf" | "tbufs" => Self::End(256 << 10),
            // An archive's directory has about 100 bytes per tensor.
            "npz" | "pt" | "pth" | "ckpt" | "bin" | "zip" => Self::End(128 << 10),
            // About 100 bytes per tensor.
            _ => Self::Front(256 << 10),
        }
    }

    /// Returns how many bytes to request at the start, before the file's length is known.
    pub(crate) fn front(self) -> u64 {
        match self {
            Self::Front(len) => len.max(1),
            Self::End(_) => BEGINNING,
        }
    }

    /// Returns the range to request next, once the bytes of [`IndexPlace::front`] have arrived and the length
    /// is known.
    pub(crate) fn end(self, len: u64) -> Option<Range<u64>> {
        let Self::End(guess) = self else {
            return None;
        };
        let wanted = guess.max((len / DATA_PER_INDEX).min(LARGEST_END));
        let start = len.saturating_sub(wanted).max(BEGINNING);
        (start < len).then_some(start..len)
    }
}
