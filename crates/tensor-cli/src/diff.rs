//! `tensor diff`: what two files do not have in common.

use std::io::Write;

use fmt_core::{Error, ErrorKind, TensorReader};
use tensor_files::{DifferenceKind, Tolerance};

use crate::{
    failure::{About, Failure, Outcome},
    files,
    options::Diff,
    progress, sources,
};

pub(crate) fn run(options: &Diff, out: &mut impl Write) -> Outcome {
    let (left, right) = (files::open(&options.left)?, files::open(&options.right)?);
    let left = sources::watched(left);
    let tolerance = Tolerance {
        absolute: options.atol,
        relative: options.rtol,
    };
    if left.entries().is_empty() && right.entries().is_empty() {
        let error = Error::new(
            ErrorKind::Unsupported,
            "neither file has a tensor: nothing can be compared",
        );
        return Err(error).about(&options.right);
    }
    let differences = tensor_files::diff(&left, &right, tolerance);
    drop((left, right));
    if progress::is_interrupted() {
        return Err(Failure::Interrupted);
    }
    let mut is_same = true;
    for difference in &differences {
        let is_note = !options.metadata && difference.kind == DifferenceKind::Metadata;
        writeln!(out, "{}{difference}", if is_note { "note: " } else { "" })?;
        is_same &= is_note;
    }
    if is_same { Ok(()) } else { Err(Failure::Found) }
}
