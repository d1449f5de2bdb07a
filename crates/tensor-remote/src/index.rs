//! Where a file has its index: what is asked for first.

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
    /// At the end, in so many bytes.
    End(u64),
}

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
}
