//! Calling cargo.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Runs cargo in the workspace's folder, with these variables in its environment.
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
