//! `tensor convert` and `tensor merge`: from one format to another.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use tensor_files::{AllowedLoss, ConvertOptions};

use crate::{
    bits::AsBits,
    failure::{About, Outcome},
    files,
    options::{Convert, LossKind, Merge, Target},
    sources::{Sources, unless_interrupted},
};

pub(crate) fn run(options: &Convert, out: &mut (impl Write + Send)) -> Outcome {
    write(
        std::slice::from_ref(&options.from),
        &options.to,
        &options.target,
        out,
    )
}

pub(crate) fn merge(options: &Merge, out: &mut (impl Write + Send)) -> Outcome {
    write(&options.files, &options.output, &options.target, out)
}

/// Writes everything into one file, which appears when it is complete, or to standard output.
fn write(from: &[PathBuf], to: &Path, target: &Target, out: &mut (impl Write + Send)) -> Outcome {
    let sources = Sources::all(from)?;
    let format = files::target(to, target)?;
    let options = ConvertOptions {
        allow_loss: allowed(target),
        names_beside: !target.no_sidecar,
        dense_budget: files::read_options().limits.decoded_bytes,
        output: files::output_options(target.no_clobber, from),
        ..ConvertOptions::default()
    };
    let bits = target.as_bits.then(|| AsBits::new(&sources, &*format));
    let reader: &dyn fmt_core::TensorReader = match &bits {
        Some(bits) => bits,
        None => &sources,
    };
    if files::is_standard(to) {
        let converted = tensor_files::convert_into(reader, &*format, out, &options).about(to);
        // Standard output has the file, so that notes go elsewhere.
        return note_losses(
            &converted.map_err(unless_interrupted)?.losses,
            &mut std::io::stderr(),
        );
    }
    let converted = tensor_files::convert(reader, &*format, to, &options).about(to);
    note_losses(&converted.map_err(unless_interrupted)?.losses, out)
}

fn allowed(target: &Target) -> AllowedLoss {
    let has = |kind| target.allow_loss.contains(&LossKind::All) || target.allow_loss.contains(&kind);
    AllowedLoss {
        tensors: has(LossKind::Tensors),
        sparsity: has(LossKind::Sparsity),
        names: has(LossKind::Names) || target.no_sidecar,
        metadata: !target.strict,
        foreign_parts: has(LossKind::Parts),
    }
}

fn note_losses(losses: &[tensor_files::Loss], out: &mut dyn Write) -> Outcome {
    for loss in losses {
        writeln!(out, "lost: {loss}")?;
    }
    Ok(())
}
