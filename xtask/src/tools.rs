//! Runs checks that need external tools. Each check runs if its tool is installed, and otherwise explains how
//! to install the tool.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{cargo, workspace};

/// A tool that is a subcommand of cargo.
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

    /// Returns an error with installation instructions if the tool is missing.
    pub(crate) fn ensure_installed(&self) -> Result<()> {
        ensure!(
            self.is_installed(),
            "cargo-{} is not installed: {}",
            self.name,
            self.install
        );
        Ok(())
    }

    /// Returns the cargo command that runs the tool.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO"));
        command.arg(self.name);
        command
    }

    /// Runs the tool. Returns an error if it is not installed.
    fn run(&self, arguments: &[&str]) -> Result<()> {
        self.ensure_installed()?;
        let arguments: Vec<&str> = [self.name].into_iter().chain(arguments.iter().copied()).collect();
        cargo::run(&arguments, &[])
    }
}

/// Checks licences, sources and known vulnerabilities of the dependencies against deny.toml. The list of
/// vulnerabilities requires a network.
pub(crate) fn deny() -> Result<()> {
    DENY.run(&["--workspace", "--all-features", "check"])
}

/// Runs the checks that need no list of vulnerabilities, for CI. Downloads missing crates for other
/// platforms. Prints a note if the tool is not installed.
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

/// Returns whether rustup has installed this version of Rust.
fn has_toolchain(version: &str) -> bool {
    let asked = Command::new("rustup")
        .args(["run", version, "rustc", "--version"])
        .output();
    asked.is_ok_and(|output| output.status.success())
}

/// Runs [`msrv`] if the toolchain of the minimum version is installed. Otherwise prints a note.
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

/// Checks that everything that users depend on compiles with the minimum supported Rust version,
/// `rust-version` in Cargo.toml.
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
        // `env!("CARGO")` and these variables would select the toolchain that runs this task.
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

/// Packages every crate as for a registry, and builds the packages. Without a registry account, nothing more
/// can be tested.
///
/// By default, cargo uses a separate target directory for each package and would build all dependencies once
/// per package. With CI's flags, builds of the tests are reused.
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

/// Runs the part of packaging that needs neither network nor compiler, for CI: checks every manifest and
/// lists the files of each package.
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
