//! Runs cargo commands in this workspace.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Flags that all checks share, so that dependencies are built only once.
pub(crate) const FLAGS: &[(&str, &str)] = &[("RUSTFLAGS", "-Dwarnings"), ("RUSTDOCFLAGS", "-Dwarnings")];

/// Runs cargo in the workspace's root with additional environment variables.
pub(crate) fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(workspace::root())
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(())
}

/// Builds both programs with CI's flags, reusing the builds of the tests. Returns the directory of the
/// programs.
pub(crate) fn programs_of_ci() -> Result<PathBuf> {
    run(
        &["build", "--package", "oip-server", "--package", "tensor-cli"],
        FLAGS,
    )?;
    Ok(workspace::built("debug"))
}

/// Returns whether the toolchain has the standard library of a target.
pub(crate) fn has_target(target: &str) -> Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .context("asking rustc for a target")?;
    let folder = String::from_utf8_lossy(&output.stdout);
    Ok(output.status.success() && Path::new(folder.trim()).is_dir())
}

/// Returns the host's target triple.
pub(crate) fn host() -> Result<String> {
    printed("host-tuple")
}

/// Returns the directory of the toolchain's component `llvm-tools`, which may not be installed.
pub(crate) fn tools() -> Result<PathBuf> {
    let libraries = PathBuf::from(printed("target-libdir")?);
    Ok(libraries.with_file_name("bin"))
}

/// Returns what rustc prints for an information of this name.
fn printed(information: &str) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", information])
        .output()
        .context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success() && !text.is_empty(),
        "rustc does not print its {information}"
    );
    Ok(text)
}
