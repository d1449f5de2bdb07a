//! Compares this server with other servers on a scikit-learn model, by installed size, start time and cost of
//! a request.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, venv, workspace};

/// Options of `compare`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates virtual environments
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// A server that is already built, instead of building a release
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// Number of requests to measure
    #[arg(long, default_value_t = 2000, value_name = "N")]
    requests: u32,
}

/// Packages that the other servers need for the model.
const MODEL: &[&str] = &["scikit-learn==1.9.1", "joblib"];

/// The other servers, each in its own environment.
const SERVERS: [(&str, &[&str]); 3] = [
    ("mlserver", &["mlserver==1.7.1", "mlserver-sklearn==1.7.1"]),
    ("kserve", &["kserve==0.21.0"]),
    ("triton", &["nvidia-pytriton==0.7.0"]),
];

/// Measures all servers, and prints a table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let folder = root.join("target/compare");
    let server = match &options.server {
        Some(server) => server.clone(),
        None => {
            cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
            workspace::built("release").join("oip-server")
        }
    };
    let mut script = None;
    let mut arguments = Vec::new();
    for (name, requirements) in SERVERS {
        let requirements = match name {
            // MLServer pins its own version of scikit-learn.
            "mlserver" => requirements.to_vec(),
            _ => [requirements, MODEL].concat(),
        };
        let python = venv::environment(&options.python, &folder.join(name), &requirements)?;
        arguments.push(format!("--{name}={}", python.display()));
        script.get_or_insert(python);
    }
    let python = script.context("no other server")?;
    let status = Command::new(python)
        .arg(root.join("xtask/compare/compare.py"))
        .args(arguments)
        .arg("--server")
        .arg(server)
        .arg("--models")
        .arg(root.join("crates/oip-server/examples/models"))
        .args(["--requests", &options.requests.to_string()])
        .arg("--folder")
        .arg(folder.join("run"))
        .status()
        .context("starting the script")?;
    ensure!(status.success(), "not every server could be measured");
    Ok(())
}
