//! Real ONNX models out of public Python packages against ONNX Runtime: `xtask/zoo/zoo.py`, over a server of a release build.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, python, workspace};

/// Which models, and what becomes of the results.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that the virtual environment is made with
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// Fetch and run only models whose names match this regular expression; a name begins with the package's
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Where the models are kept
    #[arg(long, default_value = "target/zoo", value_name = "FOLDER")]
    folder: PathBuf,
    /// Write the verdicts into docs/zoo.md
    #[arg(long)]
    page: bool,
    /// A server that is already built, instead of building one
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

/// What the script imports.
const REQUIREMENTS: &[&str] = &[
    "numpy==2.4.6",
    "onnxruntime==1.31.1",
    "tritonclient[http]==2.73.0",
];

/// Fetches the models, runs them, and fails when an answer is wrong, fails, or ends the server.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let python = python::environment(&options.python, &root.join("target/zoo-venv"), REQUIREMENTS)?;
    let server = match &options.server {
        Some(server) => server.clone(),
        None => {
            cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
            root.join("target/release/oip-server")
        }
    };
    let mut script = Command::new(python);
    script.arg(root.join("xtask/zoo/zoo.py"));
    script.arg("--server").arg(server);
    script.arg("--folder").arg(root.join(&options.folder));
    if let Some(only) = &options.only {
        script.args(["--only", only]);
    }
    if options.page {
        script.arg("--page").arg(root.join("docs/zoo.md"));
    }
    let status = script.status().context("starting the script")?;
    ensure!(status.success(), "some models are answered wrongly, or fail");
    Ok(())
}
