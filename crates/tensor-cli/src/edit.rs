//! `tensor rename` and `tensor set`: another index behind the data where the format allows, else the file anew.

use std::path::Path;

use fmt_core::{Error, ErrorKind, Format};
use fmt_tbuf::TbufEditor;
use fmt_ztensor::{CborValue, CustomField, ZtensorEditor};
use tensor_files::{Composite, ConvertOptions};

use crate::{
    failure::{About, Outcome},
    files, inspect,
    options::{Rename, Set},
    sources,
};

pub(crate) fn rename(options: &Rename) -> Outcome {
    let (path, from, to) = (&*options.file, &options.from, &options.to);
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
        _ => rewrite(path, |changed| {
            inspect::find(changed, from)?;
            changed.rename(from, to)
        }),
    }
}

pub(crate) fn set(options: &Set) -> Outcome {
    let path = &*options.file;
    let (key, value) = &options.assignment;
    let value = (!value.is_empty()).then_some(value.as_str());
    match (format_of(path)?.id(), &options.tensor) {
        ("tbuf", None) => set_tbuf(path, key, value).about(path),
        ("ztensor", Some(tensor)) => set_ztensor(path, tensor, key, value).about(path),
        ("ztensor", None) => Err(no_place(
            key,
            "--tensor NAME: the format says nothing of a file as a whole",
        ))
        .about(path),
        (_, None) => rewrite(path, |changed| {
            let metadata = changed.metadata_mut();
            match value {
                Some(value) => metadata.insert(key.clone(), value.to_owned()),
                None => metadata.remove(key),
            };
            Ok(())
        }),
        (_, Some(tensor)) => {
            Err(no_place(key, "nothing: the format says no more of tensors").of_tensor(tensor)).about(path)
        }
    }
}

/// The format of a file that is to be changed. An earlier change that did not come to an end is undone first.
fn format_of(path: &Path) -> Outcome<&'static dyn Format> {
    let mut journal = path.as_os_str().to_owned();
    journal.push(".append-journal");
    if Path::new(&journal).exists() {
        // A file without its end is told by its beginning, or by its name.
        match files::detect(path)?.id() {
            "tbuf" => fmt_tbuf::recover(path),
            "ztensor" => fmt_ztensor::recover(path),
            _ => Ok(0),
        }
        .about(path)?;
    }
    files::detect(path)
}

/// Writes a file anew with other names or metadata, in its own format.
fn rewrite(path: &Path, change: impl FnOnce(&mut Composite<'_>) -> Result<(), Error>) -> Outcome {
    let format = files::detect(path)?;
    let mut sources = files::open(path)?;
    change(&mut sources).about(path)?;
    let sources = sources::watched(sources);
    let converted = tensor_files::convert(&sources, format, path, &ConvertOptions::default());
    converted
        .map(drop)
        .about(path)
        .map_err(sources::unless_interrupted)
}

fn set_tbuf(path: &Path, key: &str, value: Option<&str>) -> Result<(), Error> {
    if key != "model" {
        return Err(no_place(key, "'model', all that the format says of a file"));
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
    let error = Error::new(ErrorKind::Unsupported, "the format has no place for this");
    error.expected(expected).found(format_args!("'{key}'"))
}
