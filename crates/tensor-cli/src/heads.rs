//! Edits names and metadata of formats whose index precedes the data, in place if the file has room for the
//! new index.

use std::path::Path;

use fmt_core::{Error, Format, HeadEditor};

use crate::{
    failure::{About, Outcome},
    files,
};

/// Renames a tensor of a safetensors or GGUF file.
pub(crate) fn rename(path: &Path, from: &str, to: &str) -> Outcome {
    edit(path, |editor| editor.rename(from, to))
}

/// Sets or removes metadata of a safetensors or GGUF file.
pub(crate) fn set(path: &Path, key: &str, value: Option<&str>) -> Outcome {
    edit(path, |editor| {
        editor.set(key, value);
        Ok(())
    })
}

fn edit(path: &Path, change: impl FnOnce(&mut HeadEditor) -> Result<(), Error>) -> Outcome {
    let open = match files::detect(path).map(Format::id) {
        Ok("gguf") => fmt_gguf::edit,
        _ => fmt_safetensors::edit,
    };
    let edited = open(path, &files::read_options()).and_then(|mut editor| {
        change(&mut editor)?;
        editor.save().map(drop)
    });
    edited.about(path)
}
