//! `tensor verify`: checks files against their checksums or a manifest.

use std::{io::Write, path::Path};

use fmt_core::{Entry, Error, ErrorKind, Lint, TensorReader, Verification};
use serde::Serialize;
use tensor_core::QuotedName;
use tensor_files::{Composite, Manifest};

use crate::{
    failure::{About, Failure, Outcome},
    files, manifest,
    options::Verify,
    progress::Progress,
    report, table,
};

/// The result of verifying one file.
#[derive(Serialize)]
struct Verdict {
    file: String,
    format: String,
    is_good: bool,
    tensors: usize,
    /// Number of tensors with a verified checksum.
    checked: usize,
    unchecked: usize,
    errors: Vec<Finding>,
    notes: Vec<Finding>,
    oddities: Vec<Oddity>,
}

#[derive(Serialize)]
struct Finding {
    kind: String,
    message: String,
}

impl Finding {
    fn of(error: &Error) -> Self {
        Self {
            kind: error.kind().to_string(),
            message: error.to_string(),
        }
    }
}

#[derive(Serialize)]
struct Oddity {
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_bytes: Option<u64>,
}

impl Oddity {
    fn of(lint: Lint) -> Self {
        Self {
            tensor: lint.tensor,
            message: lint.message,
            start_bytes: lint.range.as_ref().map(|range| range.start),
            end_bytes: lint.range.map(|range| range.end),
        }
    }
}

pub(crate) fn run(options: &Verify, out: &mut impl Write) -> Outcome {
    let expected = options.manifest.as_deref().map(manifest::read).transpose()?;
    let mut is_good = true;
    for path in &options.files {
        let reader = match files::open(path) {
            Ok(reader) => reader,
            // An error in one file does not keep the command from checking the other files.
            Err(failure @ Failure::File { .. }) => {
                if options.json {
                    failure.to_json(out)?;
                }
                failure.report();
                is_good = false;
                continue;
            }
            Err(other) => return Err(other),
        };
        let mut verdict = Verdict::of(&reader, path);
        // Opening the file has already validated its structure.
        if !options.index {
            verdict.read(&reader, path, options.strict, expected.as_ref())?;
        }
        is_good &= verdict.is_good;
        match options.json {
            true => report::print(&verdict, out)?,
            false if options.index => writeln!(
                out,
                "{}: good index: {}, {}, data not read",
                verdict.file,
                verdict.format,
                table::tensors(verdict.tensors)
            )?,
            false => show(&verdict, expected.is_some(), out)?,
        }
    }
    if is_good { Ok(()) } else { Err(Failure::Found) }
}

impl Verdict {
    /// Creates the verdict of a file whose data has not been read yet.
    fn of(reader: &Composite<'_>, path: &Path) -> Self {
        Self {
            file: path.display().to_string(),
            format: reader.format().to_owned(),
            is_good: true,
            tensors: reader.entries().len(),
            checked: 0,
            unchecked: 0,
            errors: Vec::new(),
            notes: Vec::new(),
            oddities: Vec::new(),
        }
    }

    /// Reads all data and checks it against checksums and the manifest `expected`.
    fn read(
        &mut self,
        reader: &Composite<'_>,
        path: &Path,
        is_strict: bool,
        expected: Option<&Manifest>,
    ) -> Outcome {
        let mut progress = Progress::new(reader.entries().iter().map(Entry::stored_size).sum());
        for (index, entry) in reader.entries().iter().enumerate() {
            match reader.verify(index) {
                Ok(Verification::Ok) => self.checked += 1,
                Ok(Verification::UnknownChecksum(kind)) => {
                    let what = format!("a checksum of the unknown kind {}", QuotedName(&kind));
                    let note = Error::new(ErrorKind::Unsupported, what).of_tensor(&entry.name);
                    self.notes.push(Finding::of(&note));
                    self.unchecked += 1;
                }
                Ok(_) => self.unchecked += 1,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    self.notes.push(Finding::of(&error));
                    self.unchecked += 1;
                }
                Err(error) => self.errors.push(Finding::of(&error)),
            }
            progress.advance(entry.stored_size());
        }
        drop(progress);
        if let Some(expected) = expected {
            match manifest::of(reader, path) {
                Ok(found) => {
                    let differences = expected.differences(&found).into_iter();
                    self.errors.extend(differences.map(|(tensor, what)| Finding {
                        kind: ErrorKind::Changed.to_string(),
                        message: format!("tensor {} {what}", QuotedName(&tensor)),
                    }));
                }
                Err(Failure::File { error, .. }) => self.errors.push(Finding::of(&error)),
                Err(other) => return Err(other),
            }
        }
        let lints = reader.lints().about(path)?;
        self.oddities = lints.into_iter().map(Oddity::of).collect();
        self.is_good = self.errors.is_empty() && (!is_strict || self.oddities.is_empty());
        Ok(())
    }
}

fn show(verdict: &Verdict, has_manifest: bool, out: &mut impl Write) -> Outcome {
    let name = &verdict.file;
    for note in &verdict.notes {
        writeln!(out, "{name}: note: {}", note.message)?;
    }
    for error in &verdict.errors {
        writeln!(out, "{name}: error[{}]: {}", error.kind, error.message)?;
    }
    for odd in &verdict.oddities {
        let tensor = odd
            .tensor
            .as_deref()
            .map_or(String::new(), |tensor| format!("tensor {}: ", QuotedName(tensor)));
        let bytes = match (odd.start_bytes, odd.end_bytes) {
            (Some(start), Some(end)) => format!(", bytes {start} to {end}"),
            _ => String::new(),
        };
        writeln!(out, "{name}: odd: {tensor}{}{bytes}", table::text(&odd.message))?;
    }
    let good = if verdict.is_good { "good" } else { "not good" };
    let as_said = match (verdict.is_good, has_manifest) {
        (true, true) => ", as the manifest says",
        _ => "",
    };
    let oddities = match verdict.oddities.len() {
        1 => "1 oddity".to_owned(),
        count => format!("{count} oddities"),
    };
    writeln!(
        out,
        "{name}: {good}: {}, {}, {} checked against checksums, {} without, {oddities}{as_said}",
        verdict.format,
        table::tensors(verdict.tensors),
        verdict.checked,
        verdict.unchecked,
    )?;
    Ok(())
}
