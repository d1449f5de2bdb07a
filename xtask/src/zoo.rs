//! Real ONNX models out of public Python packages, and exports of models trained here, against ONNX Runtime: the scripts in
//! `xtask/zoo`, over a server of a release build.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, python, workspace};

/// Which models, and where the results go.
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
    /// Write the verdicts into docs/zoo.md; those of exports are its last section
    #[arg(long)]
    page: bool,
    /// A file that keeps the verdicts: models that it has are not run again
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Instead of models that others made: train about 140 models of scikit-learn, XGBoost, LightGBM and CatBoost and
    /// run their exports
    #[arg(long, conflicts_with = "results")]
    exports: bool,
    /// A server that is already built, instead of building one
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

/// What the script imports.
const REQUIREMENTS: &[&str] = &[
    "numpy==2.4.6",
    "onnx==1.18.0",
    "onnxruntime==1.31.1",
    "tritonclient[http]==2.73.0",
];

/// What the script that trains models imports too.
const TRAINING: &[&str] = &[
    "catboost==1.2.10",
    "lightgbm==4.7.0",
    "onnxmltools==1.16.0",
    "scikit-learn==1.9.1",
    "skl2onnx==1.20.0",
    "xgboost-cpu==3.2.0",
];

/// Fetches the models, runs them, and fails when an answer is wrong, fails, or ends the server.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let (script, environment, requirements) = match options.exports {
        true => (
            "exports.py",
            "target/exports-venv",
            [REQUIREMENTS, TRAINING].concat(),
        ),
        false => ("zoo.py", "target/zoo-venv", REQUIREMENTS.to_vec()),
    };
    let python = python::environment(&options.python, &root.join(environment), &requirements)?;
    let server = match &options.server {
        Some(server) => server.clone(),
        None => {
            cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
            workspace::built("release").join("oip-server")
        }
    };
    let mut script_run = Command::new(python);
    let script = script_run.arg(root.join("xtask/zoo").join(script));
    script.arg("--server").arg(server);
    let folder = root.join(&options.folder);
    script.arg("--folder").arg(match options.exports {
        true => folder.join("exports"),
        false => folder,
    });
    if let Some(only) = &options.only {
        script.args(["--only", only]);
    }
    if let Some(results) = &options.results {
        script.arg("--results").arg(results);
    }
    if options.page {
        script.arg("--page").arg(root.join("docs/zoo.md"));
    }
    let status = script.status().context("starting the script")?;
    ensure!(status.success(), "some models are answered wrongly, or fail");
    Ok(())
}
