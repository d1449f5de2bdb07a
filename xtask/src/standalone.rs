//! Checks and runs `crates/tensorferry/tests/standalone`: programs of a crate outside of the workspace, which
//! gets neither the workspace's features nor its dependencies.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::{cargo, workspace};

/// The directory of the crate.
pub(crate) const FOLDER: &str = "crates/tensorferry/tests/standalone";

/// What `cargo clippy` puts between the flags of `CLIPPY_ARGS`.
const SEPARATOR: &str = "__CLIPPY_HACKERY__";

/// Checks the crate with the workspace's lints, and runs its tests, without network.
pub(crate) fn run() -> Result<()> {
    let folder = workspace::root().join(FOLDER);
    // With the workspace's versions, no crate is downloaded. Cargo removes the packages that are not needed.
    fs::copy(workspace::root().join("Cargo.lock"), folder.join("Cargo.lock"))
        .context("copying Cargo.lock")?;
    let manifest = folder.join("Cargo.toml");
    let manifest = [
        "--manifest-path",
        manifest.to_str().context("the path is not UTF-8")?,
    ];
    cargo::run(&[&["fmt", "--check"], &manifest[..]].concat(), &[])?;
    // The builds of the workspace's external dependencies are reused where the features are the same.
    let target = workspace::target().display().to_string();
    let shared = [
        ("CARGO_TARGET_DIR", target.as_str()),
        ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only"),
        ("CARGO_INCREMENTAL", "0"),
    ];
    // Clippy compiles the crate as `rustc` does. `cargo clippy` would check all of its dependencies once more.
    let lints = lint_flags(&fs::read_to_string(workspace::root().join("Cargo.toml"))?)?;
    let lints = lints.join(SEPARATOR);
    let clippy = [
        ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
        ("CLIPPY_ARGS", &lints),
    ];
    let environment = [cargo::FLAGS, &shared, &clippy].concat();
    let arguments = ["test", "--offline", "--test", "programs"];
    cargo::run(
        &[&arguments, &manifest[..], &["--", "--quiet"]].concat(),
        &environment,
    )
}

/// Returns the workspace's lints of Rust and Clippy as flags of rustc. Printing is allowed: the programs talk
/// to their users.
fn lint_flags(manifest: &str) -> Result<Vec<String>> {
    let mut flags = Vec::new();
    for (table, prefix) in [("rust", ""), ("clippy", "clippy::")] {
        let (_, lints) = manifest
            .split_once(&format!("[workspace.lints.{table}]\n"))
            .with_context(|| format!("Cargo.toml has no lints of {table}"))?;
        for line in lints.lines().take_while(|line| !line.starts_with('[')) {
            let Some((name, level)) = line.split_once(" = ") else {
                continue;
            };
            let level = level.split('"').nth(1).unwrap_or_default();
            ensure!(["forbid", "warn"].contains(&level), "unknown level: {line}");
            let is_group = line.contains("priority");
            flags.insert(
                if is_group { 0 } else { flags.len() },
                format!("--{level}={prefix}{name}"),
            );
        }
    }
    flags.push("--allow=clippy::print_stdout".to_owned());
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lints_become_flags_groups_first() {
        let manifest = "[workspace.lints.rust]\nunsafe_code = \"forbid\"\n\n[workspace.lints.clippy]\n\
                        todo = \"warn\"\nall = { level = \"warn\", priority = -1 }\n\n[other]\nx = \"y\"\n";
        assert_eq!(
            lint_flags(manifest).unwrap(),
            [
                "--warn=clippy::all",
                "--forbid=unsafe_code",
                "--warn=clippy::todo",
                "--allow=clippy::print_stdout"
            ]
        );
        let all = lint_flags(&fs::read_to_string(workspace::root().join("Cargo.toml")).unwrap()).unwrap();
        assert!(all.contains(&"--warn=clippy::unwrap_used".to_owned()), "{all:?}");
    }
}
