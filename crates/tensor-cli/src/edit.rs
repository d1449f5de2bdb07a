//! `tensor rename` and `tensor set`: rewrite only the index where the format allows, otherwise the whole
//! file.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use fmt_core::{
    AtomicFile, CompleteFile, Error, ErrorKind, FileIdentity, Format, OutputOptions, TensorReader,
};
use fmt_tbuf::TbufEditor;
use fmt_ztensor::{CborValue, CustomField, ZtensorEditor};
use tensor_files::{Composite, ConvertOptions, ShardIndex, SourceFiles};

use crate::{
    failure::{About, Outcome},
    files, heads, inspect,
    options::{Rename, Set},
    report, sources,
};

pub(crate) fn rename(options: &Rename, out: &mut impl Write) -> Outcome {
    match shard_with(&options.file, &options.from, &options.to)? {
        Some((shard, index)) => {
            rename_in(&shard, &options.from, &options.to)?;
            // If the process is killed here, the old index contradicts the shard, and the checkpoint is
            // rejected when it is opened.
            if let Some(index) = index {
                index.persist().about(&options.file)?;
            }
        }
        None => rename_in(&options.file, &options.from, &options.to)?,
    }
    tell(&options.file, options.json, out)
}

/// Prints the path and size of the edited file, with `--json` only.
pub(crate) fn tell(path: &Path, is_json: bool, out: &mut impl Write) -> Outcome {
    if is_json {
        let done = serde_json::json!({ "file": path.display().to_string(), "file_bytes": files::len(path) });
        report::print(&done, out)?;
    }
    Ok(())
}

/// For a sharded checkpoint, returns the file that contains the tensor, and the updated index, if any.
fn shard_with(path: &Path, from: &str, to: &str) -> Outcome<Option<(PathBuf, Option<CompleteFile>)>> {
    // If no file exists at `path`, it may be the single-file name of shards. Otherwise opening it reports the
    // error.
    let files = tensor_files::checkpoint_files(path).about(path)?;
    if let [only] = &files[..] {
        return Ok((only != path).then(|| (only.clone(), None)));
    }
    let opened = files::open(path)?;
    let index = inspect::find(&opened, from).about(path)?;
    let shard = PathBuf::from(opened.file_of(index));
    if opened.find(to).is_some() && from != to {
        return Err(Error::new(ErrorKind::Duplicate, "the new name is taken").of_tensor(to)).about(path);
    }
    let Some(index_path) = files.first().filter(|file| tensor_files::is_index(file)) else {
        return Ok(Some((shard, None)));
    };
    let mut output = OutputOptions::default();
    output.replaces = Some(FileIdentity::of(index_path).about(index_path)?);
    let json = std::fs::read(index_path)?;
    let renamed = ShardIndex::from_json(&json)
        .and_then(|index| index.renamed(from, to))
        .about(path)?;
    let mut file = AtomicFile::create_with(index_path, &output).about(index_path)?;
    file.write_all(renamed.to_json().as_bytes())?;
    Ok(Some((shard, Some(file.complete().about(index_path)?))))
}

/// Returns whether a path may be a sharded checkpoint.
pub(crate) fn is_of_many(path: &Path) -> bool {
    path.is_dir() || tensor_files::is_index(path)
}

fn rename_in(path: &Path, from: &str, to: &str) -> Outcome {
    match format_of(path)?.id() {
        "tbuf" => TbufEditor::open_with(path, &files::read_options(), Default::default())
            .and_then(|mut editor| {
                editor.rename(from, to)?;
                editor.save_in_place()
            })
            .about(path),
        "ztensor" => ZtensorEditor::open_with(path, &files::read_options(), Default::default())
            .and_then(|mut editor| {
                editor.rename(from, to)?;
                editor.save_in_place()
            })
            .about(path),
        "safetensors" | "gguf" => {
            inspect::find(&files::open(path)?, from).about(path)?;
            heads::rename(path, from, to)
        }
        _ => rewrite(path, |changed| {
            inspect::find(changed, from)?;
            changed.rename(from, to)
        }),
    }
}

pub(crate) fn set(options: &Set, out: &mut impl Write) -> Outcome {
    set_in(options)?;
    tell(&options.file, options.json, out)
}

fn set_in(options: &Set) -> Outcome {
    let path = &*options.file;
    if is_of_many(path) {
        let error = Error::new(ErrorKind::Unsupported, "metadata belongs to one file");
        return Err(error.expected("one file of the checkpoint")).about(path);
    }
    let (key, value) = &options.assignment;
    let value = (!value.is_empty()).then_some(value.as_str());
    match (format_of(path)?.id(), &options.tensor) {
        ("tbuf", None) => set_tbuf(path, key, value).about(path),
        ("ztensor", Some(tensor)) => set_ztensor(path, tensor, key, value).about(path),
        ("ztensor", None) => Err(no_place(
            key,
            "--tensor NAME: the format has no metadata for a file",
        ))
        .about(path),
        ("safetensors" | "gguf", None) => heads::set(path, key, value),
        (_, None) => rewrite(path, |changed| {
            let metadata = changed.metadata_mut();
            match value {
                Some(value) => metadata.insert(key.clone(), value.to_owned()),
                None => metadata.remove(key),
            };
            Ok(())
        }),
        (_, Some(tensor)) => {
            Err(no_place(key, "nothing: the format has no other attributes of tensors").of_tensor(tensor))
                .about(path)
        }
    }
}

/// Returns the format of a file to edit. Rolls back an interrupted edit first.
fn format_of(path: &Path) -> Outcome<&'static dyn Format> {
    let mut journal = path.as_os_str().to_owned();
    journal.push(".append-journal");
    if Path::new(&journal).exists() {
        // A truncated file is recognized by its beginning or its name.
        match files::detect(path)?.id() {
            "tbuf" => fmt_tbuf::recover(path),
            "ztensor" => fmt_ztensor::recover(path),
            _ => Ok(0),
        }
        .about(path)?;
    }
    fmt_core::HeadEditor::recover(path).about(path)?;
    files::detect(path)
}

/// Rewrites a file in its own format with other tensors, names or metadata.
pub(crate) fn rewrite(path: &Path, change: impl FnOnce(&mut Composite<'_>) -> Result<(), Error>) -> Outcome {
    let format = files::detect(path)?;
    let options = ConvertOptions {
        sources: SourceFiles::of([path]),
        ..ConvertOptions::default()
    };
    let mut sources = files::open(path)?;
    change(&mut sources).about(path)?;
    let sources = sources::watched(sources);
    let converted = tensor_files::convert(&sources, format, path, &options);
    converted
        .map(drop)
        .about(path)
        .map_err(sources::unless_interrupted)
}

fn set_tbuf(path: &Path, key: &str, value: Option<&str>) -> Result<(), Error> {
    if key != "model" {
        return Err(no_place(key, "'model', the format's only metadata"));
    }
    let mut editor = TbufEditor::open_with(path, &files::read_options(), Default::default())?;
    editor.set_model(value)?;
    editor.save_in_place()
}

fn set_ztensor(path: &Path, tensor: &str, key: &str, value: Option<&str>) -> Result<(), Error> {
    let mut editor = ZtensorEditor::open_with(path, &files::read_options(), Default::default())?;
    match value {
        Some(value) => editor.set_field(tensor, CustomField::new(key, CborValue::from(value))?)?,
        None => drop(editor.remove_field(tensor, key)?),
    }
    editor.save_in_place()
}

fn no_place(key: &str, expected: &str) -> Error {
    let error = Error::new(ErrorKind::Unsupported, "the format cannot store this");
    error.expected(expected).found(format_args!("'{key}'"))
}
