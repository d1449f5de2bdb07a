use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use fmt_core::{ByteSource, Error, FileSource, ReadOptions, TensorReader, read_range};

use crate::{
    composite::Composite,
    registry::detect,
    shards::{Checkpoint, find, open_index, read_index},
};

/// Opens a file of any format, whose tensors are read when they are asked for; or a checkpoint of many files, as one.
///
/// - A folder stands for the checkpoint in it: `model.safetensors` or its index, as Hugging Face's libraries lay them out.
/// - An index (`NAME.index.json`) stands for the files that it names: [`open_shards`](crate::open_shards) has the rules.
/// - A BTF file, which has no names, gets those of the file beside it (`NAME.btf.names.json`), if there is one that fits;
///   one that does not is a lint.
///
/// # Errors
/// As [`FileSource::open`], [`detect`] and the format's reader; [`ErrorKind::NotAFile`](fmt_core::ErrorKind::NotAFile)
/// for a folder with no checkpoint or several.
pub fn open(path: &Path, options: &ReadOptions) -> Result<Box<dyn TensorReader>, Error> {
    match find(path)? {
        Checkpoint::File(path) => open_file(&path, options),
        Checkpoint::Index(path) => Ok(Box::new(open_index(&path, options)?)),
    }
}

/// As [`open`], with the name of the file that each tensor is in.
///
/// # Errors
/// As [`open`].
pub fn open_composite(path: &Path, options: &ReadOptions) -> Result<Composite<'static>, Error> {
    match find(path)? {
        Checkpoint::File(path) => Ok(Composite::new(
            path.display().to_string(),
            open_file(&path, options)?,
        )),
        Checkpoint::Index(path) => open_index(&path, options),
    }
}

/// The files that a path stands for as [`open`] takes it: the file itself, or an index and the files that it names.
///
/// # Errors
/// As [`open`], for folders and indices. Files with tensors are not opened.
pub fn checkpoint_files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let index_path = match find(path)? {
        Checkpoint::File(path) => return Ok(vec![path]),
        Checkpoint::Index(path) => path,
    };
    let index = read_index(&index_path, &ReadOptions::default())?;
    let folder = index_path.parent().unwrap_or(Path::new(""));
    let files = index.files().into_iter().map(|file| folder.join(file));
    let files = files.collect::<Vec<_>>();
    Ok([vec![index_path], files].concat())
}

/// Opens one file.
pub(crate) fn open_file(path: &Path, options: &ReadOptions) -> Result<Box<dyn TensorReader>, Error> {
    open_source(Arc::new(FileSource::open(path)?), Some(path), options)
}

/// Opens a file of any format from any source, such as a mapping of `tensor-mmap`. With a path, its name helps to tell
/// the format, and what stands beside it is looked for as in [`open`].
///
/// # Errors
/// As [`open`].
pub fn open_source(
    source: Arc<dyn ByteSource>,
    path: Option<&Path>,
    options: &ReadOptions,
) -> Result<Box<dyn TensorReader>, Error> {
    let head = read_range(&*source, 0..source.len().min(512), "the beginning of the file")?;
    let format = detect(&head, source.len(), path)?;
    #[cfg(feature = "onnx")]
    if let (Some(path), "onnx") = (path, format.id()) {
        return crate::beside::open_onnx(source, path, options);
    }
    let reader = format.open(source, options)?;
    #[cfg(feature = "btf")]
    if let (Some(path), "btf") = (path, format.id()) {
        return Ok(crate::renamed::with_names_beside(reader, path));
    }
    Ok(reader)
}
