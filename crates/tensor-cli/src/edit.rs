//! `tensor rename` and `tensor set`: changes of the index alone.

use std::path::Path;

use fmt_core::{Error, ErrorKind};
use fmt_tbuf::TbufEditor;
use fmt_ztensor::{CborValue, CustomField, ZtensorEditor};

use crate::{
    failure::{About, Outcome},
    files,
    options::{Rename, Set},
};

pub(crate) fn rename(options: &Rename) -> Outcome {
    let (path, from, to) = (&*options.file, &options.from, &options.to);
    match files::detect(path)?.id() {
        "tbuf" => TbufEditor::open(path).and_then(|mut editor| {
            editor.rename(from, to)?;
            editor.save()
        }),
        "ztensor" => ZtensorEditor::open(path).and_then(|mut editor| {
            editor.rename(from, to)?;
            editor.save()
        }),
        other => Err(fixed(other)),
    }
    .about(path)
}

pub(crate) fn set(options: &Set) -> Outcome {
    let path = &*options.file;
    let (key, value) = &options.assignment;
    let value = (!value.is_empty()).then_some(value.as_str());
    match (files::detect(path)?.id(), &options.tensor) {
        ("tbuf", None) => set_tbuf(path, key, value),
        ("tbuf", Some(tensor)) => {
            Err(no_place(key, "nothing: the format says no more of tensors").of_tensor(tensor))
        }
        ("ztensor", Some(tensor)) => set_ztensor(path, tensor, key, value),
        ("ztensor", None) => Err(no_place(
            key,
            "--tensor NAME: the format says nothing of a file as a whole",
        )),
        (other, _) => Err(fixed(other)),
    }
    .about(path)
}

fn set_tbuf(path: &Path, key: &str, value: Option<&str>) -> Result<(), Error> {
    if key != "model" {
        return Err(no_place(key, "'model', all that the format says of a file"));
    }
    let mut editor = TbufEditor::open(path)?;
    editor.set_model(value)?;
    editor.save()
}

fn set_ztensor(path: &Path, tensor: &str, key: &str, value: Option<&str>) -> Result<(), Error> {
    let mut editor = ZtensorEditor::open(path)?;
    match value {
        Some(value) => editor.set_field(tensor, CustomField::new(key, CborValue::from(value))?)?,
        None => drop(editor.remove_field(tensor, key)?),
    }
    editor.save()
}

fn no_place(key: &str, expected: &str) -> Error {
    let error = Error::new(ErrorKind::Unsupported, "the format has no place for this");
    error.expected(expected).found(format_args!("'{key}'"))
}

fn fixed(format: &str) -> Error {
    let what = format!(
        "the index of {format} files cannot be rewritten by itself; `tensor convert` writes a new file"
    );
    Error::new(ErrorKind::Unsupported, what)
}
