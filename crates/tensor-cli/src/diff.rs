//! `tensor diff`: what two files do not have in common.

use std::io::Write;

use tensor_files::Tolerance;

use crate::{
    failure::{Failure, Outcome},
    options::Diff,
    progress,
    sources::Sources,
};

pub(crate) fn run(options: &Diff, out: &mut impl Write) -> Outcome {
    let (left, right) = (Sources::one(&options.left)?, Sources::one(&options.right)?);
    let tolerance = Tolerance {
        absolute: options.atol,
        relative: options.rtol,
    };
    let differences = tensor_files::diff(&left, &right, tolerance);
    drop((left, right));
    if progress::is_interrupted() {
        return Err(Failure::Interrupted);
    }
    for difference in &differences {
        writeln!(out, "{difference}")?;
    }
    if differences.is_empty() {
        Ok(())
    } else {
        Err(Failure::Found)
    }
}
