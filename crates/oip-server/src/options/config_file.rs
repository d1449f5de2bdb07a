//! The configuration file: a source of options, with errors that name the line.

use std::{fs, path::Path};

use crate::{failure::Failure, options::Options};

/// Reads options from a configuration file.
pub(crate) fn read_file(path: &Path) -> Result<Options, Failure> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("the configuration file {shown} cannot be read: {error}")))?;
    Options::from_file(&text).map_err(|error| {
        let line = error
            .span
            .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        let message = error.message.replace('\n', " ");
        Failure::usage(format!("the configuration file {shown}, line {line}: {message}"))
    })
}
