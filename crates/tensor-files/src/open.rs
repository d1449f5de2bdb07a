//! Opens a single file of any format.

use std::{path::Path, sync::Arc};

use fmt_core::{ByteSource, Error, FileSource, ReadOptions, TensorReader, read_range};
use tensor_core::Bytes;

use crate::{explain::explain, registry::detect};

/// Opens a single file of any format by path.
pub(crate) fn open_file(path: &Path, options: &ReadOptions) -> Result<Box<dyn TensorReader>, Error> {
    open_source(Arc::new(FileSource::open(path)?), Some(path), options)
}

/// Reads the first bytes, which identify the format.
pub(crate) fn head_of(source: &dyn ByteSource) -> Result<Bytes, Error> {
    read_range(source, 0..source.len().min(512), "the beginning of the file")
}

/// Opens a file of any format from any source, such as a mapping of `tensor-mmap`. With a path, the name
/// helps to detect the format, and companion files are found as in [`open`](crate::open()).
///
/// # Errors
/// See [`open`](crate::open()).
pub fn open_source(
    source: Arc<dyn ByteSource>,
    path: Option<&Path>,
    options: &ReadOptions,
) -> Result<Box<dyn TensorReader>, Error> {
    let (head, len) = (head_of(&*source)?, source.len());
    let format = detect(&head, len, path)?;
    #[cfg(feature = "onnx")]
    if let (Some(path), "onnx") = (path, format.id()) {
        let opened = crate::external_weights::open_onnx(source, path, options);
        return opened.map_err(|error| explain(error, format, &head, len));
    }
    #[cfg(feature = "btf")]
    if let (Some(path), "btf") = (path, format.id()) {
        let opened = crate::btf_names::open_btf(source, path, options);
        return opened.map_err(|error| explain(error, format, &head, len));
    }
    format
        .open(source, options)
        .map_err(|error| explain(error, format, &head, len))
}
