//! Guesses where the index of a file is, so that it can be requested first.

use std::ops::Range;

/// The location of a file's index, and how many bytes to request there first.
///
/// If the guess is too small, another request is needed. If it is too large, some bytes are fetched
/// unnecessarily.
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
    /// The index is at the end, within this many bytes or, if larger, within the last 1/8192 of the file (at
    /// most 4 MiB): larger files have more tensors.
    End(u64),
}

/// Bytes requested at the start of a file with its index at the end. The response contains the file's length,
/// and these bytes identify its format.
const BEGINNING: u64 = 32 << 10;
/// Assumed ratio of file size to index size.
const DATA_PER_INDEX: u64 = 8192;
/// Maximum number of bytes requested at the end of a large file.
const LARGEST_END: u64 = 4 << 20;

impl IndexPlace {
    /// Guesses the location of the index from the extension of a file name.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        match extension.to_ascii_lowercase().as_str() {
            // The header of a GGUF file contains the tokenizer's vocabulary.
            "gguf" => Self::Front(4 << 20),
            "npy" | "btf" => Self::Front(64 << 10),
            "zt" | "ztensor" | "tbuf" | "tbufs" => Self::End(256 << 10),
            // The central directory of a zip archive takes about 100 bytes per tensor.
            "npz" | "pt" | "pth" | "ckpt" | "bin" | "zip" => Self::End(128 << 10),
            // Other headers, such as that of safetensors, take about 100 bytes per tensor.
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

    /// Returns the range to request next, once the first response has given the file's length `len`. Returns
    /// `None` if no further request is needed.
    pub(crate) fn end(self, len: u64) -> Option<Range<u64>> {
        let Self::End(guess) = self else {
            return None;
        };
        let wanted = guess.max((len / DATA_PER_INDEX).min(LARGEST_END));
        let start = len.saturating_sub(wanted).max(BEGINNING);
        (start < len).then_some(start..len)
    }
}
