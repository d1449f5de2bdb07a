//! Describes what a file really is if it cannot be opened in the expected format.

use fmt_core::{Error, ErrorKind, Format};
use tensor_core::FileKind;

/// Returns an error that names the actual kind of a file that could not be opened as `format`. Returns
/// `error` unchanged if the file is not of another kind.
///
/// ```
/// # use fmt_core::{Error, ErrorKind};
/// let format = tensor_files::format("safetensors").ok_or("no such format")?;
/// let error = Error::new(ErrorKind::TooLarge, "the length of the header");
/// let told = tensor_files::explain(error, format, b"<!DOCTYPE html>", 15);
/// assert!(told.to_string().starts_with("the file is an HTML page and not of the format safetensors: "));
/// # Ok::<(), &str>(())
/// ```
#[must_use]
pub fn explain(error: Error, format: &dyn Format, head: &[u8], len: u64) -> Error {
    // The kind `ztensor` also covers the formats `ztensor1` and `ztensor2`, and `torch` and `npz` files are
    // zip archives.
    let is_own = |kind: &FileKind| match kind {
        FileKind::Zip => matches!(format.id(), "torch" | "npz"),
        kind => kind.format().is_some_and(|own| format.id().starts_with(own)),
    };
    match FileKind::of(head, len) {
        Some(kind) if error.kind() != ErrorKind::Io && !is_own(&kind) => {
            let what = format!("the file is {kind} and not of the format {}", format.id());
            Error::new(kind_of(&kind), with_advice(what, &kind))
        }
        _ => error,
    }
}

/// Describes a file whose format cannot be determined, not even from its name.
pub(crate) fn described(head: &[u8], len: u64) -> Option<String> {
    let kind = FileKind::of(head, len)?;
    Some(with_advice(format!("the file is {kind}"), &kind))
}

fn kind_of(kind: &FileKind) -> ErrorKind {
    match kind {
        FileKind::Empty => ErrorKind::Truncated,
        _ => ErrorKind::BadMagic,
    }
}

fn with_advice(what: String, kind: &FileKind) -> String {
    match (kind.advice(), kind.format()) {
        (Some(advice), _) => format!("{what}: {advice}"),
        (None, Some(_)) => format!("{what}: give it the extension of its format"),
        (None, None) => what,
    }
}
