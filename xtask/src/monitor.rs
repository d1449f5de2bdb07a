//! `cargo xtask monitor`: runs a server under load, a real Prometheus that scrapes it, and every query of
//! docs/deploy/monitoring. Then it checks the same metrics, and traces, as sent by OTLP, both directly and
//! through another project's collector. The messages are decoded with OpenTelemetry's own definitions.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, venv, workspace};

/// Options of `monitor`.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// The Prometheus program; Debian's package prometheus contains it, and promtool
    #[arg(long, default_value = "prometheus", value_name = "PROGRAM")]
    prometheus: PathBuf,
    #[arg(long, default_value = "promtool", value_name = "PROGRAM")]
    promtool: PathBuf,
    /// Check only OTLP
    #[arg(long)]
    only_otlp: bool,
}

/// Packages with OpenTelemetry's message definitions, and with a collector.
const REQUIREMENTS: &[&str] = &["opentelemetry-proto==1.45.2", "rotel==0.0.1a15"];

/// Builds the server and runs the suite. Returns an error if a query has no samples.
pub(crate) fn run(options: &Options) -> Result<()> {
    cargo::run(&["build", "--package", "oip-server", "--bin", "oip-server"], &[])?;
    let server = workspace::built("debug").join("oip-server");
    if !options.only_otlp {
        let status = Command::new(&options.python)
            .arg(workspace::root().join("xtask/monitor/suite.py"))
            .arg(&server)
            .arg("--prometheus")
            .arg(&options.prometheus)
            .arg("--promtool")
            .arg(&options.promtool)
            .status()
            .context("starting the suite")?;
        ensure!(status.success(), "not every query has samples");
    }
    let folder = workspace::root().join("target/monitor-venv");
    let python = venv::environment(&options.python, &folder, REQUIREMENTS)?;
    let status = Command::new(python)
        .arg(workspace::root().join("xtask/monitor/pushed.py"))
        .arg(&server)
        .status()
        .context("starting the suite")?;
    ensure!(status.success(), "the OTLP exports failed some checks");
    Ok(())
}
