//! `tensor put` and `tensor append`: copy one tensor from another file into a file.

use std::io::Write;

use fmt_core::{Entry, Error, ErrorKind, TensorReader};
use tensor_files::Composite;

use crate::{
    edit,
    failure::{About, Outcome},
    files, inspect,
    options::PutOptions,
};

/// `tensor put`: replaces the tensor of the same name, or appends the tensor.
pub(crate) fn put(options: &PutOptions, out: &mut impl Write) -> Outcome {
    write(options, true, out)
}

/// `tensor append`: appends a tensor, whose name must be new.
pub(crate) fn append(options: &PutOptions, out: &mut impl Write) -> Outcome {
    write(options, false, out)
}

fn write(options: &PutOptions, is_replacing: bool, out: &mut impl Write) -> Outcome {
    let path = &*options.file;
    files::check_local(path)?;
    if edit::is_of_many(path) {
        let error = Error::new(
            ErrorKind::Unsupported,
            "a tensor is written into one file of a checkpoint",
        );
        return Err(error.expected("that file, and `tensor index --write` afterwards")).about(path);
    }
    let tensor = one_of(options)?;
    edit::rewrite(path, |changed| {
        if changed.find(&options.name).is_some() {
            if !is_replacing {
                let error =
                    Error::new(ErrorKind::Exists, "a tensor with this name exists").of_tensor(&options.name);
                return Err(error.expected("another name, or `tensor put`, which replaces it"));
            }
            changed.retain(|entry: &Entry| entry.name != options.name);
        }
        // `append` merges the metadata of the source file, so the original metadata is restored.
        let metadata = changed.metadata().clone();
        changed.append(tensor)?;
        *changed.metadata_mut() = metadata;
        Ok(())
    })?;
    edit::tell(path, options.json, out)
}

/// Opens the source file, reduced to the tensor that `--tensor` names or to its only tensor, under the new
/// name.
fn one_of(options: &PutOptions) -> Outcome<Composite<'static>> {
    let mut source = files::open(&options.from)?;
    let wanted = match (&options.tensor, source.entries()) {
        (Some(name), _) => inspect::find(&source, name).about(&options.from)?,
        (None, [_]) => 0,
        (None, entries) => {
            let error = Error::new(ErrorKind::Unsupported, "one tensor is written");
            let error = error.expected("--tensor NAME, which of them");
            return Err(error.found(crate::table::tensors(entries.len()))).about(&options.from);
        }
    };
    let mut indices = 0..;
    source.retain(|_| indices.next() == Some(wanted));
    source
        .rename_all(|_| Some(options.name.clone()))
        .about(&options.from)?;
    Ok(source)
}
