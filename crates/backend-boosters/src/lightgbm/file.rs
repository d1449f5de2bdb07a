//! Reads a LightGBM file: its header, and its trees, from which it builds the booster.

use std::iter::{Enumerate, Peekable};

use tree_eval::{Aggregate, Trees, TreesBuilder};

use super::{Link, tree};
use crate::{
    booster::{Booster, LightgbmTrees, MAX_SCORES, Scorer},
    error::Refusal,
    meaning::Meaning,
};

/// Reads a model in LightGBM's text format.
pub(crate) fn read(bytes: &[u8]) -> Result<Booster, Refusal> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Refusal::new(format!(
            "not a text file: byte {} is not UTF-8",
            error.valid_up_to()
        ))
    })?;
    let mut lines = text.lines().enumerate().peekable();
    let head = read_head(&mut lines)?;
    let mut builder = TreesBuilder::new(head.per_iteration, Aggregate::Sum);
    let trees = read_trees(&mut lines, &head, &mut builder)?;
    if !lines.next().is_some_and(|(_, line)| is_end(line)) {
        return Err(Refusal::new(
            "the line 'end of trees' is missing: the file is truncated; copy it again".to_owned(),
        ));
    }
    if trees % head.per_iteration != 0 {
        return Err(Refusal::new(format!(
            "{trees} trees are not a whole number of iterations of {}",
            head.per_iteration
        )));
    }
    let iterations = trees / head.per_iteration;
    let trees: Trees = builder.finish();
    Ok(Booster {
        package: "lightgbm",
        objective: head.objective.unwrap_or("custom").to_owned(),
        features: head.features,
        scores: head.per_iteration,
        meaning: head.meaning,
        scorer: Scorer::Lightgbm(Box::new(LightgbmTrees {
            single: trees.forest(),
            double: trees.forest(),
            link: head.link,
            divisor: if head.is_average {
                iterations.max(1) as f64
            } else {
                1.0
            },
        })),
        // LightGBM does not save trees after the best iteration.
        early_stopping: None,
    })
}

/// The lines of a file with their indices.
type NumberedLines<'a> = Peekable<Enumerate<std::str::Lines<'a>>>;

/// Reads the lines before the first tree.
fn read_head<'a>(lines: &mut NumberedLines<'a>) -> Result<CheckedHead<'a>, Refusal> {
    lines.next_if(|(_, line)| line.trim_end() == "tree");
    let mut head = Head::default();
    while let Some((number, line)) = lines.next_if(|(_, line)| !line.starts_with("Tree=")) {
        if is_end(line) {
            break;
        }
        head.line(line)
            .map_err(|error| error.within(format_args!("line {}", number + 1)))?;
    }
    head.check()
}

/// Reads the trees into `builder`, and returns their number.
fn read_trees(
    lines: &mut NumberedLines<'_>,
    head: &CheckedHead<'_>,
    builder: &mut TreesBuilder,
) -> Result<usize, Refusal> {
    let mut trees = 0;
    while let Some((number, _)) = lines.next_if(|(_, line)| line.starts_with("Tree=")) {
        let mut tree = tree::Lines::default();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.starts_with("Tree=") && !is_end(line)) {
            if let Some((key, value)) = line.split_once('=') {
                tree.set(key, value);
            }
        }
        let score = (trees % head.per_iteration) as u32;
        tree.read(builder, score, head.features)
            .map_err(|error| error.within(format_args!("tree {trees}, at line {}", number + 1)))?;
        trees += 1;
    }
    Ok(trees)
}

fn is_end(line: &str) -> bool {
    line.trim_end() == "end of trees"
}

/// The lines of the header, which precedes the trees.
#[derive(Default)]
struct Head<'a> {
    version: Option<&'a str>,
    per_iteration: Option<usize>,
    last_feature: Option<usize>,
    objective: Option<&'a str>,
    is_average: bool,
}

/// The header after all required fields were found.
struct CheckedHead<'a> {
    per_iteration: usize,
    features: usize,
    objective: Option<&'a str>,
    link: Link,
    meaning: Meaning,
    is_average: bool,
}

impl<'a> Head<'a> {
    fn line(&mut self, line: &'a str) -> Result<(), Refusal> {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        match key.trim() {
            "version" => self.version = Some(value.trim()),
            "num_tree_per_iteration" => self.per_iteration = Some(number(key, value)?),
            "max_feature_idx" => self.last_feature = Some(number(key, value)?),
            "objective" => self.objective = Some(value.trim()).filter(|value| !value.is_empty()),
            "average_output" => self.is_average = true,
            _ => {}
        }
        Ok(())
    }

    fn check(self) -> Result<CheckedHead<'a>, Refusal> {
        let lacks = |what: &str| Refusal::new(format!("the file's header lacks {what}"));
        if let Some(version) = self.version
            && !matches!(version, "v2" | "v3" | "v4")
        {
            return Err(Refusal::new(format!(
                "the file's version is {}, supported are v2 to v4",
                tensor_core::QuotedName(version)
            )));
        }
        let per_iteration = self
            .per_iteration
            .ok_or_else(|| lacks("num_tree_per_iteration"))?;
        if !(1..=MAX_SCORES).contains(&per_iteration) {
            return Err(Refusal::new(format!(
                "num_tree_per_iteration is {per_iteration}, expected 1 to {MAX_SCORES}"
            )));
        }
        let last = self.last_feature.ok_or_else(|| lacks("max_feature_idx"))?;
        if last >= Trees::MAX_FEATURES {
            return Err(Refusal::new(format!(
                "max_feature_idx is {last}, expected at most {}",
                Trees::MAX_FEATURES - 1
            )));
        }
        let (link, meaning) = Link::of_objective(self.objective)?;
        if matches!(meaning, Meaning::Classes { .. }) && per_iteration < 2 {
            return Err(Refusal::new(format!(
                "the objective is multiclass, but num_tree_per_iteration is {per_iteration}"
            )));
        }
        Ok(CheckedHead {
            per_iteration,
            features: last + 1,
            objective: self.objective,
            link,
            meaning,
            is_average: self.is_average,
        })
    }
}

fn number(key: &str, value: &str) -> Result<usize, Refusal> {
    value.trim().parse().map_err(|_| {
        Refusal::new(format!(
            "{key} is {}, expected an integer",
            tensor_core::QuotedName(value.trim())
        ))
    })
}
