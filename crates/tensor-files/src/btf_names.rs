//! BTF's tensor names, in a file next to the data.

use std::{path::Path, sync::Arc};

use fmt_btf::{BtfReader, Names};
use fmt_core::{ByteSource, Error, FileSource, ReadOptions, TensorReader, behind_links, read_range};

use crate::composite::Composite;

/// Maximum number of bytes that are read from a names file.
const LONGEST: u64 = 256 << 20;

/// Opens a BTF file. Its tensors get the names from the names file next to it, if that file exists and
/// matches.
pub(crate) fn open_btf(
    source: Arc<dyn ByteSource>,
    path: &Path,
    options: &ReadOptions,
) -> Result<Box<dyn TensorReader>, Error> {
    let reader = BtfReader::open(source, options)?;
    // The names file may also be next to a link to the BTF file, as in a cache where all files are links.
    let mut names_paths = [&behind_links(path), path].map(Names::path_for).into_iter();
    let Some(names_path) = names_paths.find(|path| path.exists()) else {
        return Ok(Box::new(reader));
    };
    // Only a regular file is read; opening a pipe fails instead of blocking.
    let json = FileSource::open(&names_path)
        .and_then(|file| read_range(&file, 0..file.len().min(LONGEST), "the file of names"));
    Ok(
        match json.and_then(|json| Names::from_json(&json, reader.len())) {
            Ok(names) => Box::new(reader.with_names(names)?),
            Err(error) => {
                let mut unnamed = Composite::new(
                    path.display().to_string(),
                    Box::new(reader) as Box<dyn TensorReader>,
                );
                unnamed.add_lint(format!("{} is not used: {error}", names_path.display()));
                Box::new(unnamed)
            }
        },
    )
}
