//! Checks each crate with no features, with each feature alone and with all features, since any combination
//! must compile. Other checks use only the features that the whole workspace needs.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Result, ensure};
use cargo_metadata::MetadataCommand;
use clap::Args;

use crate::{cargo, workspace};

/// Options of `features`.
#[derive(Args)]
pub(crate) struct Options {
    /// Check only this crate
    #[arg(long, value_name = "CRATE")]
    only: Option<String>,
}

/// Crates that need at least one feature, and fail to compile with an error message without any.
const NEEDS_ONE: &[&str] = &["oip-client"];

/// Checks every combination of features, in the target directory of the other checks.
pub(crate) fn run(options: &Options) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        .no_deps()
        .exec()?;
    let is_wanted = |name: &str| options.only.as_ref().is_none_or(|only| only == name);
    let mut packages: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| !package.features.is_empty() && package.name.as_str() != "xtask")
        .filter(|package| is_wanted(package.name.as_str()))
        .collect();
    ensure!(!packages.is_empty(), "no crate of that name has features");
    packages.sort_by_key(|package| package.name.to_string());
    let mut failed = Vec::new();
    for package in packages {
        let (name, start) = (package.name.as_str(), Instant::now());
        let mut choices = choices(&package.features);
        choices.retain(|choice| !choice.is_empty() || !NEEDS_ONE.contains(&name));
        for choice in &choices {
            let mut arguments = vec!["check", "--locked", "--package", name];
            arguments.extend(["--no-default-features", "--features", choice]);
            if cargo::run(&arguments, cargo::FLAGS).is_err() {
                failed.push(format!("{name} with [{choice}]"));
            }
        }
        let (count, seconds) = (choices.len(), start.elapsed().as_secs_f64());
        println!("{name}: {count} choices of features, {seconds:.0} s");
    }
    ensure!(failed.is_empty(), "do not compile: {}", failed.join("; "));
    Ok(())
}

/// Returns the combinations: no feature, each feature alone, and all features.
fn choices(features: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let names: Vec<&str> = features
        .keys()
        .map(String::as_str)
        .filter(|name| *name != "default")
        .collect();
    let mut choices = vec![String::new()];
    choices.extend(names.iter().map(|name| (*name).to_owned()));
    if names.len() > 1 {
        choices.push(names.join(","));
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_tried_alone() {
        let features = |names: &[&str]| {
            names
                .iter()
                .map(|name| ((*name).to_owned(), Vec::new()))
                .collect()
        };
        assert_eq!(choices(&features(&["default", "a"])), ["", "a"]);
        assert_eq!(choices(&features(&["a", "b", "default"])), ["", "a", "b", "a,b"]);
    }
}
