//! Edits names and metadata of GGUF files in place.

use std::{path::Path, sync::Arc};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, FileSource, HeadEditor, Metadata, ReadOptions, StoredDType,
};

use crate::{
    GgufReader,
    header::{self, ALIGNMENT_KEY, PlannedTensor},
    types::GgmlType,
};

/// Opens a file to edit names and metadata.
///
/// A changed value keeps its type, and a new value is a string; the metadata key `gguf.types` sets other
/// types (rule G5 in docs/formats/gguf.md). If the new header fits before the data (the alignment padding
/// leaves a few bytes), the file is changed in place; otherwise it is rewritten.
///
/// ```
/// # use fmt_core::{Format, Plan, TensorReader};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.gguf");
/// # let metadata = [("general.name".to_owned(), "old".to_owned())].into();
/// # let out = std::fs::File::create(&path)?;
/// # fmt_gguf::Gguf.create(Box::new(out), Plan { metadata, ..Plan::default() })?.finish()?;
/// let mut editor = fmt_gguf::edit(&path, &Default::default())?;
/// editor.set("general.name", Some("new"));
/// assert!(editor.save()?, "it is as long, so that it fits");
/// assert_eq!(fmt_gguf::GgufReader::from_path(&path)?.metadata()["general.name"], "new");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`FileSource::open`] and [`GgufReader::open`]. [`HeadEditor::save`] rejects a changed
/// alignment, and files with unknown types.
pub fn edit(path: &Path, options: &ReadOptions) -> Result<HeadEditor, Error> {
    let source = Arc::new(FileSource::open(path)?);
    let reader = GgufReader::open(Arc::clone(&source) as _, options)?;
    // A file without tensors may end before its padding.
    let head_len = reader.data_start().min(source.len());
    HeadEditor::new(path, source, &reader, head_len, encode)
}

/// Encodes a header whose tensors keep their offsets.
fn encode(entries: &[Entry], metadata: &Metadata, head_len: u64) -> Result<Vec<u8>, Error> {
    let alignment = header::alignment_of(metadata)?;
    let announced = entries.iter().map(|entry| {
        let ggml = match &entry.dtype {
            StoredDType::Known(dtype) => GgmlType::of_dtype(*dtype),
            StoredDType::Opaque(dtype) => GgmlType::of_opaque(dtype),
            StoredDType::Unknown(_) => None,
        };
        let ggml = ggml.ok_or_else(|| {
            let error = Error::new(ErrorKind::Unsupported, "the type of the tensor is not known");
            error.of_tensor(&entry.name).rule("G4")
        })?;
        let offset = entry.range.start - head_len;
        if !offset.is_multiple_of(alignment) {
            let what = format!("'{ALIGNMENT_KEY}' cannot become larger, since the data is not moved");
            return Err(Error::new(ErrorKind::Unsupported, what)
                .of_tensor(&entry.name)
                .rule("G2"));
        }
        Ok(PlannedTensor {
            name: &entry.name,
            dims: entry.shape.dims(),
            ggml,
            offset,
        })
    });
    header::encode(&announced.collect::<Result<Vec<_>, _>>()?, metadata)
}
