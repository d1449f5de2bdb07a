//! Checks that each crate is ready for publication: README, example, keywords and documentation settings.

use std::fs;

use anyhow::Result;
use cargo_metadata::{MetadataCommand, Package, TargetKind};

use crate::workspace;

/// Returns one line for each requirement that a published crate does not meet.
pub(crate) fn lacking() -> Result<Vec<String>> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        .no_deps()
        .exec()?;
    let published = metadata.packages.iter().filter(|package| {
        package
            .publish
            .as_ref()
            .is_none_or(|registries| !registries.is_empty())
    });
    Ok(published.flat_map(lacks).collect())
}

fn lacks(package: &Package) -> impl Iterator<Item = String> {
    let has = |kind: &TargetKind| package.targets.iter().any(|target| target.kind.contains(kind));
    let is_program = !has(&TargetKind::Lib);
    let folder = package.manifest_path.parent();
    let name = package.name.to_string();
    let readme = folder.map(|folder| fs::read_to_string(folder.join("README.md")).unwrap_or_default());
    let is_said = readme
        .as_deref()
        .is_some_and(|readme| readme.contains("exempt from semantic versioning"));
    let checks = [
        (
            "no sentence in README.md that the feature `testing` is exempt from semantic versioning",
            is_said || !package.features.contains_key("testing"),
        ),
        (
            "no README.md",
            folder.is_some_and(|folder| folder.join("README.md").is_file()),
        ),
        (
            "no example in README.md",
            readme.as_deref().is_some_and(|readme| readme.contains("\n```")),
        ),
        ("no description", package.description.is_some()),
        ("no keywords", !package.keywords.is_empty()),
        (
            "no [package.metadata.docs.rs]",
            package.metadata["docs"]["rs"].is_object(),
        ),
        ("no examples/", is_program || has(&TargetKind::Example)),
        // There is no public repository yet, and anybody could register an invented URL.
        ("an address of a repository", package.repository.is_none()),
    ];
    checks
        .into_iter()
        .filter(|(_, is_fine)| !is_fine)
        .map(move |(what, _)| format!("{name}: {what}"))
}
