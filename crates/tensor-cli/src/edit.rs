//! `tensor rename` and `tensor set`: another index behind the data where the format allows, else the file anew.

use std::{ops::Range, path::Path};

use fmt_core::{Entry, Error, ErrorKind, Format, Lint, Metadata, TensorReader, TensorStream, Verification};
use fmt_tbuf::TbufEditor;
use fmt_ztensor::{CborValue, CustomField, ZtensorEditor};
use tensor_core::{SparseCoo, Tensor};
use tensor_files::ConvertOptions;

use crate::{
    failure::{About, Outcome},
    files, heads, inspect,
    options::{Rename, Set},
    sources::{Sources, unless_interrupted},
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
        "safetensors" | "gguf" => heads::rename(path, from, to),
        _ => rewrite(path, |changed| changed.rename(from, to)),
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
        ("safetensors" | "gguf", None) => heads::set(path, key, value),
        (_, None) => rewrite(path, |changed| {
            changed.set(key, value);
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
    fmt_core::HeadEditor::recover(path).about(path)?;
    files::detect(path)
}

/// Writes a file anew with other names or metadata, in its own format.
fn rewrite(path: &Path, change: impl FnOnce(&mut Changed<'_>) -> Result<(), Error>) -> Outcome {
    let format = files::detect(path)?;
    let sources = Sources::one(path)?;
    let mut changed = Changed::new(&sources);
    change(&mut changed).about(path)?;
    let converted = tensor_files::convert(&changed, format, path, &ConvertOptions::default());
    converted.map(drop).about(path).map_err(unless_interrupted)
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

/// A file with other names or metadata.
struct Changed<'r> {
    inner: &'r dyn TensorReader,
    entries: Vec<Entry>,
    metadata: Metadata,
}

impl<'r> Changed<'r> {
    fn new(inner: &'r dyn TensorReader) -> Self {
        Self {
            inner,
            entries: inner.entries().to_vec(),
            metadata: inner.metadata().clone(),
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let index = inspect::find(self.inner, from)?;
        if from != to && self.inner.find(to).is_some() {
            return Err(Error::new(ErrorKind::Duplicate, "the new name is taken").of_tensor(to));
        }
        self.entries[index].name = to.to_owned();
        Ok(())
    }

    fn set(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.metadata.insert(key.to_owned(), value.to_owned()),
            None => self.metadata.remove(key),
        };
    }
}

impl TensorReader for Changed<'_> {
    fn format(&self) -> &'static str {
        self.inner.format()
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        self.inner.tensor(index)
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        self.inner.sparse(index)
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        self.inner.rows(index, rows)
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        self.inner.stream(index)
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        self.inner.read_into(index, out)
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        self.inner.verify(index)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        self.inner.lints()
    }

    fn foreign_parts(&self) -> &[String] {
        self.inner.foreign_parts()
    }
}
