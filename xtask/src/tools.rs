//! Checks by tools that are not part of Rust: each runs where its tool is installed, and says how to install it where not.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{cargo, workspace};

/// A tool that cargo finds by its name.
pub(crate) struct Tool {
    /// The subcommand of cargo.
    name: &'static str,
    install: &'static str,
}

const DENY: Tool = Tool {
    name: "deny",
    install: "cargo install cargo-deny",
};
pub(crate) const SEMVER: Tool = Tool {
    name: "semver-checks",
    install: "cargo install cargo-semver-checks",
};

impl Tool {
    fn is_installed(&self) -> bool {
        let mut ask = self.command();
        ask.arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    }

    /// An error that says how to install it, where it is not.
    pub(crate) fn ensure_installed(&self) -> Result<()> {
        ensure!(
            self.is_installed(),
            "cargo-{} is not installed: {}",
            self.name,
            self.install
        );
        Ok(())
    }

    /// The call of cargo that runs it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO"));
        command.arg(self.name);
        command
    }

    /// Runs it; an error where it is not installed.
    fn run(&self, arguments: &[&str]) -> Result<()> {
        self.ensure_installed()?;
        let arguments: Vec<&str> = [self.name].into_iter().chain(arguments.iter().copied()).collect();
        cargo::run(&arguments, &[])
    }
}

/// Licences, sources and known faults of the dependencies, by deny.toml. Needs a network for the list of faults.
pub(crate) fn deny() -> Result<()> {
    DENY.run(&["--workspace", "--all-features", "check"])
}

/// The part of it that needs no list of faults, for CI: crates for other platforms are fetched where they are missing. Says so where
/// the tool is not installed.
pub(crate) fn deny_in_ci() -> Result<()> {
    if !DENY.is_installed() {
        println!("   skipped: cargo-deny is not installed ({})", DENY.install);
        return Ok(());
    }
    DENY.run(&[
        "--workspace",
        "--all-features",
        "check",
        "licenses",
        "bans",
        "sources",
    ])
}

/// Whether rustup has a version of Rust.
fn has_toolchain(version: &str) -> bool {
    let asked = Command::new("rustup")
        .args(["run", version, "rustc", "--version"])
        .output();
    asked.is_ok_and(|output| output.status.success())
}

/// The same check where that version is installed; says so where it is not.
pub(crate) fn msrv_in_ci() -> Result<()> {
    let version = minimum_version()?;
    if has_toolchain(&version) {
        return msrv();
    }
    println!(
        "   skipped: Rust {version} is not installed (rustup toolchain install {version} --profile minimal)"
    );
    Ok(())
}

/// The minimum supported Rust version, `rust-version` of Cargo.toml, compiles everything that users depend on.
pub(crate) fn msrv() -> Result<()> {
    let version = minimum_version()?;
    let toolchain = format!("+{version}");
    ensure!(
        has_toolchain(&version),
        "Rust {version} is not installed: rustup toolchain install {version} --profile minimal"
    );
    let status = Command::new("rustup")
        .args([
            "run",
            &version,
            "cargo",
            "check",
            "--workspace",
            "--exclude",
            "xtask",
        ])
        .args(["--lib", "--bins", "--locked"])
        .arg("--target-dir")
        .arg(workspace::root().join("target/msrv"))
        // `env!("CARGO")` and these would lead to the toolchain that runs this task.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .current_dir(workspace::root())
        .status()
        .context("starting rustup")?;
    ensure!(status.success(), "`cargo {toolchain} check` failed");
    Ok(())
}

fn minimum_version() -> Result<String> {
    let manifest = fs::read_to_string(workspace::root().join("Cargo.toml"))?;
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""));
    let version = line.and_then(|line| line.strip_suffix('"'));
    Ok(version.context("Cargo.toml has no rust-version")?.to_owned())
}

/// Packages every crate as a registry would get it, and builds the packages. Without a registry's account this is all that can be tried.
///
/// Cargo gives each package a target folder of its own unless one is named, and would build all dependencies for each. With the flags of
/// CI, those that tests have built are used again.
pub(crate) fn package(verify: bool) -> Result<()> {
    let mut arguments = vec!["publish", "--workspace", "--dry-run", "--locked", "--allow-dirty"];
    if !verify {
        arguments.push("--no-verify");
    }
    let target = workspace::target().display().to_string();
    let shared = [
        ("CARGO_TARGET_DIR", target.as_str()),
        ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only"),
        ("CARGO_INCREMENTAL", "0"),
    ];
    cargo::run(&arguments, &[cargo::FLAGS, &shared].concat())
}

/// The part of it that needs no network and no compiler, for CI: every manifest, and the files that its package would have.
pub(crate) fn package_offline() -> Result<()> {
    let arguments = [
        "package",
        "--workspace",
        "--no-verify",
        "--locked",
        "--offline",
        "--allow-dirty",
        "--quiet",
    ];
    cargo::run(&arguments, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_version_is_read_and_stated() {
        let version = minimum_version().unwrap();
        assert!(version.starts_with("1."), "{version}");
        for page in ["README.md", "docs/crates.md"] {
            let text = fs::read_to_string(workspace::root().join(page)).unwrap();
            assert!(
                text.contains(&version),
                "{page} states another minimum version than {version}"
            );
        }
    }
}
