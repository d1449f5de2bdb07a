//! Real ONNX models out of public Python packages, or fresh exports of scikit-learn and boosters, against ONNX Runtime: the scripts in
//! `xtask/zoo`, over a server of a release build.

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
    /// Instead of models of packages: models of scikit-learn, XGBoost, LightGBM and CatBoost, trained and exported anew
    #[arg(long, conflicts_with = "page")]
    exports: bool,
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

/// What the script for exports imports besides.
const EXPORTERS: &[&str] = &[
    "catboost==1.2.10",
    "lightgbm==4.7.0",
    "onnx==1.18.0",
    "onnxmltools==1.16.0",
    "scikit-learn==1.9.1",
    "skl2onnx==1.20.0",
    "xgboost-cpu==3.2.0",
];

/// Fetches the models, runs them, and fails when an answer is wrong, fails, or ends the server.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let (script, environment, requirements) = match options.exports {
        false => ("zoo.py", "target/zoo-venv", REQUIREMENTS.to_vec()),
        true => (
            "exports.py",
            "target/exports-venv",
            [REQUIREMENTS, EXPORTERS].concat(),
        ),
    };
    let python = python::environment(&options.python, &root.join(environment), &requirements)?;
    let server = match &options.server {
        Some(server) => server.clone(),
        None => {
            cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
            root.join("target/release/oip-server")
        }
    };
    let mut command = Command::new(python);
    command.arg(root.join("xtask/zoo").join(script));
    command.arg("--server").arg(server);
    command.arg("--folder").arg(root.join(&options.folder));
    if let Some(only) = &options.only {
        command.args(["--only", only]);
    }
    if options.page {
        command.arg("--page").arg(root.join("docs/zoo.md"));
    }
    let status = command.status().context("starting the script")?;
    ensure!(status.success(), "some models are answered wrongly, or fail");
    Ok(())
}
