//! `tensor convert` and `tensor merge`: from one format to another.

use std::{
    collections::HashMap,
    io::{self, Write},
    path::{Path, PathBuf},
};

use fmt_core::{AtomicFile, Entry, Error, ErrorKind, Format, Plan, PlannedEntry, TensorReader};

use crate::{
    failure::{About, Outcome},
    files,
    options::{Convert, Merge, Target},
    pieces,
    progress::Progress,
    table,
};

pub(crate) fn run(options: &Convert, out: &mut impl Write) -> Outcome {
    write(
        std::slice::from_ref(&options.from),
        &options.to,
        &options.target,
        out,
    )
}

pub(crate) fn merge(options: &Merge, out: &mut impl Write) -> Outcome {
    write(&options.files, &options.output, &options.target, out)
}

/// A tensor that is going to be copied: in which of the sources, and where there.
type Place = (usize, usize);

/// Writes what `sources` hold into one file, which appears when it is complete.
fn write(sources: &[PathBuf], to: &Path, target: &Target, out: &mut impl Write) -> Outcome {
    let format = files::format_of(to, target.format.as_deref())?;
    let readers = sources
        .iter()
        .map(|path| files::open(path))
        .collect::<Outcome<Vec<_>>>()?;
    let mut losses = Vec::new();
    let (plan, places) = plan(sources, &readers, target.allow_loss, &mut losses)?;
    let (plan, places) = fit(format, plan, places, target.allow_loss, &mut losses).about(to)?;
    for loss in losses {
        writeln!(out, "lost: {loss}")?;
    }
    let total = plan
        .entries
        .iter()
        .filter_map(PlannedEntry::byte_len)
        .fold(0, u64::saturating_add);
    let mut file = AtomicFile::create(to).about(to)?;
    {
        let mut writer = format.create(Box::new(&mut file), plan).about(to)?;
        let mut progress = Progress::new(total);
        for (source, index) in places {
            let path = &sources[source];
            for piece in pieces::bytes(&*readers[source], index).about(path)? {
                let piece = piece.about(path)?;
                writer.write(&piece).about(to)?;
                progress.advance(piece.len())?;
            }
        }
        writer.finish().about(to)?;
    }
    file.publish().about(to)
}

/// What is to be written: everything that the sources hold and that can be read.
fn plan(
    sources: &[PathBuf],
    readers: &[Box<dyn TensorReader>],
    allow_loss: bool,
    losses: &mut Vec<String>,
) -> Outcome<(Plan, Vec<Place>)> {
    let (mut plan, mut places) = (Plan::default(), Vec::new());
    let mut owners: HashMap<&str, &Path> = HashMap::new();
    for (source, (path, reader)) in sources.iter().zip(readers).enumerate() {
        for (key, value) in reader.metadata() {
            let known = plan.metadata.entry(key.clone()).or_insert_with(|| value.clone());
            if known != value {
                let error = Error::new(
                    ErrorKind::Duplicate,
                    format!("metadata '{}' of two files differs", table::text(key)),
                );
                let error = error
                    .expected(format_args!("'{}'", table::text(known)))
                    .found(format_args!("'{}'", table::text(value)));
                lose(error, allow_loss, losses).about(path)?;
            }
        }
        for (index, entry) in reader.entries().iter().enumerate() {
            let Some(planned) = planned(entry) else {
                let reason = entry.unsupported.as_deref().unwrap_or("its dtype is not known");
                let error = Error::new(
                    ErrorKind::Unsupported,
                    format!("cannot be read: {}", table::text(reason)),
                );
                lose(error.of_tensor(&entry.name), allow_loss, losses).about(path)?;
                continue;
            };
            if let Some(owner) = owners.insert(&entry.name, path) {
                let error = Error::new(ErrorKind::Duplicate, "the name is in two of the files")
                    .of_tensor(&entry.name);
                return Err(error.found(format_args!("in {} as well", owner.display()))).about(path);
            }
            plan.entries.push(planned);
            places.push((source, index));
        }
    }
    Ok((plan, places))
}

fn planned(entry: &Entry) -> Option<PlannedEntry> {
    if entry.unsupported.is_some() {
        return None;
    }
    Some(PlannedEntry {
        name: entry.name.clone(),
        spec: entry.spec()?,
        layout: entry.layout.clone(),
        attributes: entry.attributes.clone(),
    })
}

/// Makes a plan one that the format can hold, if what is lost by that may be lost.
fn fit(
    format: &dyn Format,
    mut plan: Plan,
    mut places: Vec<Place>,
    allow_loss: bool,
    losses: &mut Vec<String>,
) -> Result<(Plan, Vec<Place>), Error> {
    loop {
        let Err(error) = format.create(Box::new(io::sink()), plan.clone()) else {
            return Ok((plan, places));
        };
        let index = error
            .tensor()
            .and_then(|name| plan.entries.iter().position(|entry| entry.name == name));
        let weaker = weaker(&plan, &error, index);
        lose(error, allow_loss && weaker.is_some(), losses)?;
        match weaker {
            Some(Weaker::Plan(weaker)) => plan = weaker,
            Some(Weaker::Without(index)) => {
                plan.entries.remove(index);
                places.remove(index);
            }
            None => return Ok((plan, places)),
        }
    }
}

/// What to try after a format refused a plan.
enum Weaker {
    Plan(Plan),
    /// Without this tensor.
    Without(usize),
}

/// The least loss that could help against an error.
fn weaker(plan: &Plan, error: &Error, index: Option<usize>) -> Option<Weaker> {
    let mut weaker = plan.clone();
    match index {
        // All names go, or none: numbers beside names would be mistaken for names.
        Some(_) if error.kind() == ErrorKind::BadName && !is_numbered(plan) => {
            for (number, entry) in weaker.entries.iter_mut().enumerate() {
                entry.name = number.to_string();
            }
            Some(Weaker::Plan(weaker))
        }
        Some(index) if !plan.entries[index].attributes.is_empty() => {
            weaker.entries[index].attributes.clear();
            Some(Weaker::Plan(weaker))
        }
        Some(index) => Some(Weaker::Without(index)),
        None if !plan.metadata.is_empty() => {
            weaker.metadata.clear();
            Some(Weaker::Plan(weaker))
        }
        None => None,
    }
}

fn is_numbered(plan: &Plan) -> bool {
    let mut entries = plan.entries.iter().enumerate();
    entries.all(|(number, entry)| entry.name == number.to_string())
}

/// Notes a loss, or refuses it.
fn lose(error: Error, is_allowed: bool, losses: &mut Vec<String>) -> Result<(), Error> {
    if is_allowed {
        losses.push(error.to_string());
        return Ok(());
    }
    Err(error)
}
