//! Files of tensors of any format.

use std::{fs, io::Read, path::Path, sync::Arc};

use fmt_core::{ByteSource, Error, ErrorKind, FileSource, Format, ReadOptions, Sniff, TensorReader};

/// All formats.
pub fn formats() -> [&'static dyn Format; 5] {
    [
        &fmt_tbuf::TensorBuffers,
        &fmt_safetensors::Safetensors,
        &fmt_npy::Npy,
        &fmt_npy::Npz,
        &fmt_btf::Btf,
    ]
}

/// The format of a file's content; its extension decides where the content leaves a choice.
///
/// # Errors
/// [`ErrorKind::BadMagic`] when no format fits; [`ErrorKind::Io`].
pub fn detect(path: &Path) -> Result<&'static dyn Format, Error> {
    let mut head = Vec::new();
    let file = fs::File::open(path).map_err(|error| Error::io("the file cannot be opened", error))?;
    let len = file
        .metadata()
        .map_err(|error| Error::io("the file cannot be read", error))?
        .len();
    file.take(4096)
        .read_to_end(&mut head)
        .map_err(|error| Error::io("the file cannot be read", error))?;
    let certain = formats()
        .into_iter()
        .find(|format| format.sniff(&head, len) == Sniff::Certain);
    let by_name = || format_by_path(path).ok();
    let possible = || {
        formats()
            .into_iter()
            .find(|format| format.sniff(&head, len) == Sniff::Possible)
    };
    certain
        .or_else(by_name)
        .or_else(possible)
        .ok_or_else(|| Error::new(ErrorKind::BadMagic, "the file is of no known format"))
}

/// Opens a file of any format.
///
/// # Errors
/// As [`detect`], and what the format says.
pub fn open(path: &Path) -> Result<Box<dyn TensorReader>, Error> {
    let source: Arc<dyn ByteSource> = Arc::new(FileSource::open(path)?);
    detect(path)?.open(source, &ReadOptions::default())
}

/// A format by its short name.
///
/// # Errors
/// [`ErrorKind::Unsupported`] when there is none.
pub fn format_by_id(id: &str) -> Result<&'static dyn Format, Error> {
    formats()
        .into_iter()
        .find(|format| format.id() == id)
        .ok_or_else(|| unknown(id))
}

/// The format of a file's extension.
///
/// # Errors
/// [`ErrorKind::Unsupported`] when there is none.
pub fn format_by_path(path: &Path) -> Result<&'static dyn Format, Error> {
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_lowercase())
        .unwrap_or_default();
    let mut formats = formats().into_iter();
    formats
        .find(|format| format.extensions().contains(&&*extension))
        .ok_or_else(|| unknown(&extension))
}

fn unknown(found: &str) -> Error {
    let known: Vec<&str> = formats().map(Format::id).to_vec();
    Error::new(ErrorKind::Unsupported, "the format")
        .expected(known.join(", "))
        .found(format_args!("'{found}'"))
}
