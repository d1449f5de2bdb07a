//! Edits names and metadata of safetensors files in place.

use std::{path::Path, sync::Arc};

use fmt_core::{Entry, Error, FileSource, HeadEditor, Limits, Metadata, ReadOptions};

use crate::{
    SafetensorsReader,
    capabilities::CAPABILITIES,
    layout::LENGTH,
    writer::{ALIGNMENT, PlannedTensor, check_bits, head},
};

/// Opens a file to edit names and metadata.
///
/// If the new header fits into the old header with its padding, the file is changed in place. Otherwise the
/// file is rewritten with a kilobyte of padding, for later edits.
///
/// ```
/// use fmt_core::TensorReader;
/// use fmt_safetensors::{SafetensorsReader, SafetensorsWriter, edit};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// # SafetensorsWriter::new(std::fs::File::create(&path)?, &[], &Default::default())?.finish()?;
/// let mut editor = edit(&path, &Default::default())?;
/// editor.set("license", Some("apache-2.0"));
/// editor.save()?;
/// let mut editor = edit(&path, &Default::default())?;
/// editor.set("format", Some("pt"));
/// assert!(editor.save()?, "there is room");
/// assert_eq!(SafetensorsReader::from_path(&path)?.metadata()["license"], "apache-2.0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`FileSource::open`] and [`SafetensorsReader::open`].
pub fn edit(path: &Path, options: &ReadOptions) -> Result<HeadEditor, Error> {
    let source = Arc::new(FileSource::open(path)?);
    let reader = SafetensorsReader::open(Arc::clone(&source) as _, options)?;
    let head_len = LENGTH + reader.header_len();
    HeadEditor::new(path, source, &reader, head_len, encode)
}

/// Bytes of padding for later edits in a rewritten file.
const SLACK: u64 = 1024;

fn encode(entries: &[Entry], metadata: &Metadata, head_len: u64) -> Result<Vec<u8>, Error> {
    let limits = Limits::default();
    let tensors: Vec<PlannedTensor> = entries.iter().map(PlannedTensor::stored).collect();
    for tensor in &tensors {
        let checked = CAPABILITIES.check_name(&tensor.name, &limits);
        let checked = checked.and_then(|()| check_bits(tensor));
        checked.map_err(|error| error.of_tensor(&tensor.name))?;
    }
    head(&tensors, metadata, |shortest| {
        if shortest <= head_len {
            head_len
        } else {
            (shortest + SLACK).next_multiple_of(ALIGNMENT)
        }
    })
}
