//! `tensor diff`: compares two files.

use std::io::{self, Write};

use fmt_core::{Error, ErrorKind, TensorReader};
use serde::Serialize;
use tensor_files::{Composite, Difference, DifferenceKind, Recast, Tolerance};

use crate::{
    failure::{About, Failure, Outcome},
    files,
    options::Diff,
    report, sources,
};

/// The report of `tensor diff --json`.
#[derive(Serialize)]
struct Report {
    is_same: bool,
    differences: Vec<DiffItem>,
    notes: Vec<DiffItem>,
}

#[derive(Serialize)]
struct DiffItem {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    second: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elements: Option<u64>,
    /// The maximum difference in units of the elements; a string if JSON cannot express the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    farthest: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    l2: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    relative_l2: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cosine: Option<serde_json::Value>,
    message: String,
}

impl DiffItem {
    fn of(difference: &Difference) -> Self {
        let mut found = Self {
            kind: "other",
            tensor: Some(difference.name.clone()),
            key: None,
            first: None,
            second: None,
            elements: None,
            farthest: None,
            l2: None,
            relative_l2: None,
            cosine: None,
            message: difference.to_string(),
        };
        found.kind = match &difference.kind {
            DifferenceKind::OnlyInFirst => "only_in_first",
            DifferenceKind::OnlyInSecond => "only_in_second",
            DifferenceKind::Form { first, second } => {
                (found.first, found.second) = (Some(first.clone()), Some(second.clone()));
                "form"
            }
            DifferenceKind::Values {
                elements,
                farthest,
                distance,
            } => {
                found.elements = Some(*elements);
                found.farthest = Some(report::number(*farthest));
                if let Some(distance) = distance {
                    found.l2 = Some(report::number(distance.l2));
                    found.relative_l2 = Some(report::number(distance.relative_l2));
                    found.cosine = Some(report::number(distance.cosine));
                }
                "values"
            }
            DifferenceKind::Metadata => {
                found.key = found.tensor.take();
                "metadata"
            }
            DifferenceKind::Attribute(key) => {
                found.key = Some(key.clone());
                "attribute"
            }
            DifferenceKind::Entries => "entries",
            DifferenceKind::Unreadable(_) => "unreadable",
            _ => "other",
        };
        found
    }
}

/// Prints differences, and notes: differences that do not make the command fail.
fn print(real: &[&Difference], notes: &[&Difference], json: bool, out: &mut impl Write) -> io::Result<()> {
    if json {
        let report = Report {
            is_same: real.is_empty(),
            differences: real.iter().map(|found| DiffItem::of(found)).collect(),
            notes: notes.iter().map(|found| DiffItem::of(found)).collect(),
        };
        return report::print(&report, out);
    }
    for difference in real {
        writeln!(out, "{difference}")?;
    }
    for note in notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

pub(crate) fn run(options: &Diff, out: &mut impl Write) -> Outcome {
    let (mut left, mut right) = (files::open(&options.left)?, files::open(&options.right)?);
    options
        .choosing
        .select(&mut [&mut left, &mut right])
        .about(&options.left)?;
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
    let left = sources::watched(left);
    let (first, second) = (
        options.choosing.recast(&left).about(&options.left)?,
        options.choosing.recast(&right).about(&options.right)?,
    );
    let differences = tensor_files::diff(one_of(&first, &left), one_of(&second, &right), tolerance);
    drop(first);
    // Removes the progress bar before the differences are printed.
    drop(left);
    let is_note = |found: &&Difference| {
        let says = matches!(
            found.kind,
            DifferenceKind::Metadata | DifferenceKind::Attribute(_)
        );
        says && !options.metadata
    };
    let (notes, real): (Vec<_>, Vec<_>) = differences.iter().partition(is_note);
    print(&real, &notes, options.json, out)?;
    if real
        .iter()
        .any(|found| matches!(found.kind, DifferenceKind::Unreadable(_)))
    {
        return Err(Failure::NotCompared);
    }
    if real.is_empty() {
        Ok(())
    } else {
        Err(Failure::Found)
    }
}

fn one_of<'r>(recast: &'r Option<Recast<'_>>, files: &'r Composite<'_>) -> &'r dyn TensorReader {
    match recast {
        Some(recast) => recast,
        None => files,
    }
}
