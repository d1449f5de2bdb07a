//! Formats generated code, before it is written to files or compared with them.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Formats generated code with the workspace's options.
pub(crate) fn rustfmt(code: &str) -> Result<Vec<u8>> {
    let mut child = Command::new("rustfmt")
        .arg("--config-path")
        .arg(workspace::root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting rustfmt")?;
    child
        .stdin
        .take()
        .context("rustfmt has no input")?
        .write_all(code.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt failed");
    Ok(output.stdout)
}
