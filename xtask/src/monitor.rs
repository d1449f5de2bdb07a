//! `cargo xtask monitor`: a server under load, a real Prometheus that scrapes it, and every query of docs/deploy/monitoring.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, workspace};

/// Which programs to use.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// Debian's package prometheus has it, and promtool
    #[arg(long, default_value = "prometheus", value_name = "PROGRAM")]
    prometheus: PathBuf,
    #[arg(long, default_value = "promtool", value_name = "PROGRAM")]
    promtool: PathBuf,
}

/// Builds the server and runs the suite; fails when a query has no samples.
pub(crate) fn run(options: &Options) -> Result<()> {
    cargo::run(&["build", "--package", "oip-server", "--bin", "oip-server"], &[])?;
    let status = Command::new(&options.python)
        .arg(workspace::root().join("xtask/monitor/suite.py"))
        .arg(workspace::root().join("target/debug/oip-server"))
        .arg("--prometheus")
        .arg(&options.prometheus)
        .arg("--promtool")
        .arg(&options.promtool)
        .status()
        .context("starting the suite")?;
    ensure!(status.success(), "not every query has samples");
    Ok(())
}
