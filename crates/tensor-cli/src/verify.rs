//! `tensor verify`: whether files are what they claim to be.

use std::{io::Write, path::Path};

use fmt_core::{ErrorKind, TensorReader, Verification};

use crate::{
    failure::{Failure, Outcome},
    files,
    options::Verify,
    progress::Progress,
    table,
};

pub(crate) fn run(options: &Verify, out: &mut impl Write) -> Outcome {
    let mut is_good = true;
    for file in &options.files {
        is_good &= match options.index {
            true => verify_index(file, out)?,
            false => verify(file, options.strict, out)?,
        };
    }
    if is_good { Ok(()) } else { Err(Failure::Found) }
}

/// Opens a file; `None` when that says what is wrong with it, which is reported, as the others are still to be looked at.
fn open(path: &Path) -> Outcome<Option<Box<dyn TensorReader>>> {
    match files::open(path) {
        Ok(reader) => Ok(Some(reader)),
        Err(failure @ Failure::File { .. }) => {
            failure.report();
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

/// Opening proves everything structural.
fn verify_index(path: &Path, out: &mut impl Write) -> Outcome<bool> {
    let Some(reader) = open(path)? else {
        return Ok(false);
    };
    let (name, format) = (path.display(), reader.format());
    let tensors = table::tensors(reader.entries().len());
    writeln!(out, "{name}: good index: {format}, {tensors}, data not read")?;
    Ok(true)
}

/// Prints what is wrong with a file; returns whether it is good.
fn verify(path: &Path, is_strict: bool, out: &mut impl Write) -> Outcome<bool> {
    let Some(reader) = open(path)? else {
        return Ok(false);
    };
    let name = path.display();
    let (mut is_good, mut checked, mut unchecked) = (true, 0, 0);
    let mut progress = Progress::new(reader.entries().iter().map(fmt_core::Entry::stored_size).sum());
    for (index, entry) in reader.entries().iter().enumerate() {
        match reader.verify(index) {
            Ok(Verification::Ok) => checked += 1,
            Ok(Verification::UnknownChecksum(kind)) => {
                writeln!(
                    out,
                    "{name}: note: tensor '{}' has a checksum of an unknown kind, {}",
                    table::text(&entry.name),
                    table::text(&kind)
                )?;
                unchecked += 1;
            }
            Ok(_) => unchecked += 1,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                writeln!(out, "{name}: note: {error}")?;
                unchecked += 1;
            }
            Err(error) => {
                writeln!(out, "{name}: error[{}]: {error}", error.kind())?;
                is_good = false;
            }
        }
        progress.advance(entry.stored_size())?;
    }
    drop(progress);
    let lints = reader.lints().map_err(|error| Failure::File {
        path: name.to_string(),
        error,
    })?;
    for lint in &lints {
        let mut place = String::new();
        if let Some(tensor) = &lint.tensor {
            place += &format!("tensor '{}': ", table::text(tensor));
        }
        let bytes = lint.range.as_ref().map_or(String::new(), |range| {
            format!(", bytes {} to {}", range.start, range.end)
        });
        writeln!(out, "{name}: odd: {place}{}{bytes}", table::text(&lint.message))?;
    }
    is_good &= !is_strict || lints.is_empty();
    let verdict = if is_good { "good" } else { "not good" };
    writeln!(
        out,
        "{name}: {verdict}: {}, {}, {checked} held against checksums, {unchecked} without, {} oddities",
        reader.format(),
        table::tensors(reader.entries().len()),
        lints.len()
    )?;
    Ok(is_good)
}
