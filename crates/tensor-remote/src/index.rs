//! Where a file has its index: what is asked for first.

use std::ops::Range;

/// Where a file has its index, and how many bytes of that end are asked for first.
///
/// A guess that is too small costs another request, one that is too large some bytes.
///
/// ```
/// use tensor_remote::IndexPlace;
///
/// assert_eq!(IndexPlace::of_name("model.safetensors"), IndexPlace::Front(256 << 10));
/// assert!(matches!(IndexPlace::of_name("model.zt"), IndexPlace::End(_)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexPlace {
    /// At the beginning, in so many bytes.
    Front(u64),
    /// At the end, in so many bytes, or in the last 8192nd part of the file (4 MiB at most) where that is more: files with
    /// more data have more tensors.
    End(u64),
}

/// What is asked for at the beginning of a file that has its index at the end. It tells the file's length and format.
const BEGINNING: u64 = 32 << 10;
/// A file that is so many times as long as an index at its end is nothing unusual.
const DATA_PER_INDEX: u64 = 8192;
/// The most that is asked for at the end because the file is long.
const LARGEST_END: u64 = 4 << 20;

impl IndexPlace {
    /// What to expect of a file with such a name.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        match extension.to_ascii_lowercase().as_str() {
            // The vocabulary of a tokenizer stands in the header.
            "gguf" => Self::Front(4 << 20),
            "npy" | "btf" => Self::Front(64 << 10),
            "zt" | "ztensor" | "tbuf" | "tbufs" => Self::End(256 << 10),
            // The directory of an archive has some 100 bytes for each tensor.
            "npz" | "pt" | "pth" | "ckpt" | "bin" | "zip" => Self::End(128 << 10),
            // Some 100 bytes for each tensor.
            _ => Self::Front(256 << 10),
        }
    }

    /// Bytes of the beginning that are asked for first, before the file's length is known.
    pub(crate) fn front(self) -> u64 {
        match self {
            Self::Front(len) => len.max(1),
            Self::End(_) => BEGINNING,
        }
    }

    /// What is asked for next of a file with so many bytes, when those of [`IndexPlace::front`] are there.
    pub(crate) fn end(self, len: u64) -> Option<Range<u64>> {
        let Self::End(guess) = self else {
            return None;
        };
        let wanted = guess.max((len / DATA_PER_INDEX).min(LARGEST_END));
        let start = len.saturating_sub(wanted).max(BEGINNING);
        (start < len).then_some(start..len)
    }
}
