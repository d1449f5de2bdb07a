//! Opens a file or a checkpoint of several files by path.

use std::path::{Path, PathBuf};

use fmt_core::{Error, ReadOptions, TensorReader};

use crate::{
    composite::Composite,
    open::open_file,
    shards::{Checkpoint, FoundCheckpoint, find, open_index, open_set, read_index},
};

/// Opens a file of any format, or a checkpoint of several files as one reader. Tensors are read on demand.
///
/// - A directory is read as the checkpoint in it: `model.safetensors` or its index, as Hugging Face's
///   libraries write them.
/// - An index (`NAME.index.json`, or `NAME.index.VARIANT.json`) is read as the files that it names; see
///   [`open_shards`](crate::open_shards).
/// - A complete set of files called `NAME-00001-of-00003.EXTENSION` and so on is a checkpoint without an
///   index. The checkpoint is also found as `NAME.EXTENSION` if no file has that name.
/// - A BTF file stores no names. Its tensors get the names in the file next to it (`NAME.btf.names.json`), if
///   that file exists and matches; a file that does not match is reported as a lint.
///
/// # Errors
/// The errors of [`FileSource::open`](fmt_core::FileSource::open), [`detect`](crate::detect) and the format's
/// reader; [`ErrorKind::NotAFile`](fmt_core::ErrorKind::NotAFile) for a directory with no checkpoint or
/// several.
pub fn open(path: &Path, options: &ReadOptions) -> Result<Box<dyn TensorReader>, Error> {
    match find(path)? {
        FoundCheckpoint {
            checkpoint: Checkpoint::File(path),
            note: None,
        } => open_file(&path, options),
        found => Ok(Box::new(open_found(found, options)?)),
    }
}

/// Opens a path like [`open`], but returns a reader that also gives the file of each tensor.
///
/// # Errors
/// See [`open`].
pub fn open_composite(path: &Path, options: &ReadOptions) -> Result<Composite<'static>, Error> {
    open_found(find(path)?, options)
}

fn open_found(found: FoundCheckpoint, options: &ReadOptions) -> Result<Composite<'static>, Error> {
    let mut opened = match found.checkpoint {
        Checkpoint::File(path) => Composite::new(path.display().to_string(), open_file(&path, options)?),
        Checkpoint::Index(path) => open_index(&path, options)?,
        Checkpoint::Set(files) => open_set(&files, options)?,
    };
    found.note.into_iter().for_each(|note| opened.add_lint(note));
    Ok(opened)
}

/// Returns the files that [`open`] would read for a path: the file itself, all files of a checkpoint, or an
/// index ([`is_index`](crate::is_index)) and the files that it names.
///
/// # Errors
/// See [`open`]; only directories and indices are read. Files with tensors are not opened.
pub fn checkpoint_files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let index_path = match find(path)?.checkpoint {
        Checkpoint::File(path) => return Ok(vec![path]),
        Checkpoint::Set(files) => return Ok(files),
        Checkpoint::Index(path) => path,
    };
    let index = read_index(&index_path, &ReadOptions::default())?;
    let folder = index_path.parent().unwrap_or(Path::new(""));
    let files = index.files().into_iter().map(|file| folder.join(file));
    let files = files.collect::<Vec<_>>();
    Ok([vec![index_path], files].concat())
}
