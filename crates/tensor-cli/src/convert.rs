//! `tensor convert` and `tensor merge`: from one format to another.

use std::{io::Write, path::Path};

use tensor_files::ConvertOptions;

use crate::{
    failure::{About, Outcome},
    files,
    options::{Convert, Merge, Target},
    sources::{Sources, unless_interrupted},
};

pub(crate) fn run(options: &Convert, out: &mut impl Write) -> Outcome {
    write(&Sources::one(&options.from)?, &options.to, &options.target, out)
}

pub(crate) fn merge(options: &Merge, out: &mut impl Write) -> Outcome {
    write(
        &Sources::all(&options.files)?,
        &options.output,
        &options.target,
        out,
    )
}

/// Writes everything into one file, which appears when it is complete.
fn write(sources: &Sources, to: &Path, target: &Target, out: &mut impl Write) -> Outcome {
    let format = files::target(to, target)?;
    let options = ConvertOptions {
        allow_loss: target.allow_loss,
        ..ConvertOptions::default()
    };
    let converted = tensor_files::convert(sources, &*format, to, &options).about(to);
    for loss in converted.map_err(unless_interrupted)?.losses {
        writeln!(out, "lost: {loss}")?;
    }
    Ok(())
}
