//! The list of built-in formats, and the detection of a file's format.

use std::path::Path;

use fmt_core::{Error, ErrorKind, Format, Sniff};

use crate::explain::described;

/// Every built-in format. To add one, add a line here and a feature in Cargo.toml.
const FORMATS: &[&dyn Format] = &[
    #[cfg(feature = "btf")]
    &fmt_btf::Btf,
    #[cfg(feature = "gguf")]
    &fmt_gguf::Gguf,
    #[cfg(feature = "npy")]
    &fmt_npy::Npy,
    #[cfg(feature = "npy")]
    &fmt_npy::Npz,
    #[cfg(feature = "onnx")]
    &fmt_onnx::Onnx,
    #[cfg(feature = "safetensors")]
    &fmt_safetensors::Safetensors,
    #[cfg(feature = "tbuf")]
    &fmt_tbuf::TensorBuffers,
    #[cfg(feature = "torch")]
    &fmt_torch::Torch,
    // The first format with an extension is used for new files.
    #[cfg(feature = "ztensor")]
    &fmt_ztensor::Ztensor,
    #[cfg(feature = "ztensor")]
    &fmt_ztensor2::Ztensor1,
    #[cfg(feature = "ztensor")]
    &fmt_ztensor2::Ztensor2,
];

/// Returns all built-in formats.
///
/// ```
/// let ids: Vec<_> = tensor_files::formats().iter().map(|format| format.id()).collect();
/// assert!(ids.contains(&"safetensors"));
/// ```
#[must_use]
pub fn formats() -> &'static [&'static dyn Format] {
    FORMATS
}

/// Returns the format with the short name `id`.
///
/// ```
/// assert_eq!(tensor_files::format("npz").map(|format| format.extensions()), Some(&["npz"][..]));
/// assert!(tensor_files::format("docx").is_none());
/// ```
#[must_use]
pub fn format(id: &str) -> Option<&'static dyn Format> {
    FORMATS.iter().copied().find(|format| format.id() == id)
}

/// Returns the format for a file name.
///
/// ```
/// let format = tensor_files::format_of_path("a/Weights.BTF".as_ref());
/// assert_eq!(format.map(|format| format.id()), Some("btf"));
/// ```
#[must_use]
pub fn format_of_path(path: &Path) -> Option<&'static dyn Format> {
    let extension = path.extension()?.to_str()?;
    let is_one = |format: &&dyn Format| {
        let mut extensions = format.extensions().iter();
        extensions.any(|known| known.eq_ignore_ascii_case(extension))
    };
    FORMATS.iter().copied().find(is_one)
}

/// Detects the format of a file that begins with `head` (512 bytes are enough), is `len` bytes long, and may
/// have a path.
///
/// A magic number takes precedence. Without one, the extension of the file name determines the format. If the
/// extension is unknown too, the result is the only format that could begin with these bytes.
///
/// ```
/// let format = tensor_files::detect(b"\x93NUMPY\x01\0", 128, Some("misnamed.btf".as_ref())).unwrap();
/// assert_eq!(format.id(), "npy");
/// let error = tensor_files::detect(b"%PDF-1.7", 1000, Some("paper.pdf".as_ref())).err().unwrap();
/// assert!(error.to_string().contains("safetensors"));
/// ```
///
/// # Errors
/// [`ErrorKind::Unsupported`] when no format, or more than one, is possible.
pub fn detect(head: &[u8], len: u64, path: Option<&Path>) -> Result<&'static dyn Format, Error> {
    let that_are = |wanted: Sniff| {
        let mut found = FORMATS
            .iter()
            .filter(move |format| format.sniff(head, len) == wanted);
        (found.next().copied(), found.next().is_some())
    };
    if let (Some(format), _) = that_are(Sniff::Certain) {
        return Ok(format);
    }
    if let Some(format) = path.and_then(format_of_path) {
        // The name is used even if the bytes do not match, because the format's reader then reports the
        // mismatch.
        return Ok(format);
    }
    match that_are(Sniff::Possible) {
        (Some(format), false) => Ok(format),
        (_, has_more) => {
            let ids: Vec<&str> = FORMATS.iter().map(|format| format.id()).collect();
            let what = if has_more {
                "the file could be of several formats, and its name does not say which"
            } else {
                "neither its bytes nor its name say what format the file has"
            };
            let what = described(head, len).unwrap_or_else(|| what.to_owned());
            let error = Error::new(ErrorKind::Unsupported, what);
            Err(error.expected(format_args!("one of {}", ids.join(", "))))
        }
    }
}
