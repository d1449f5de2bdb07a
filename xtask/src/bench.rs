//! The benchmarks behind docs/benchmarks.md.

use std::{env, path::PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use crate::{cargo, workspace};

/// What to measure.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Subject {
    /// Tensor files, beside safetensors and ztensor; writes some GiB to the temporary folder.
    Files,
    /// JSON bodies, beside sonic-rs and `serde_json`.
    Json,
    /// scikit-learn's models, beside tract.
    Models,
    /// The server as a process.
    Serve,
}

impl Subject {
    /// The package and the name of each program.
    fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Files => &[
                ("fmt-tbuf", "files"),
                ("fmt-btf", "files"),
                ("tensor-mmap", "btf"),
                ("fmt-ztensor", "files"),
                ("tensor-mmap", "ztensor"),
                ("tensor-files", "convert"),
            ],
            Self::Json => &[("oip-types", "json")],
            Self::Models => &[("backend-onnx", "models")],
            Self::Serve => &[("oip-server", "serve")],
        }
    }
}

/// Runs the programs of a subject, one after the other.
pub(crate) fn run(subject: Subject, more: &[String]) -> Result<()> {
    for (package, name) in subject.programs() {
        cargo::run(&["bench", "--package", package, "--bench", name], &[])?;
    }
    if matches!(subject, Subject::Serve) {
        cost_of_requests(more)?;
    }
    Ok(())
}

/// What a request costs the server, beside bare echoes.
fn cost_of_requests(more: &[String]) -> Result<()> {
    for (package, echo) in [("oip-listen", "echo"), ("oip-grpc", "bare_echo")] {
        cargo::run(
            &["build", "--release", "--package", package, "--example", echo],
            &[],
        )?;
    }
    cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let built = workspace::root().join(target).join("release");
    let path = |name: &str| built.join(name).to_string_lossy().into_owned();
    let network = workspace::root().join("crates/oip-server/examples/models/digits/1/model.onnx");
    let (server, network) = (path("oip-server"), network.to_string_lossy().into_owned());
    let (http_floor, grpc_floor) = (path("examples/echo"), path("examples/bare_echo"));
    let measured = ["--server", &server, "--network", &network];
    let floors = ["--http-floor", &http_floor, "--grpc-floor", &grpc_floor];
    let kit = [
        "run",
        "--quiet",
        "--release",
        "--package",
        "attack-kit",
        "--",
        "cost",
    ];
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    cargo::run(&[&kit[..], &measured, &floors, &more].concat(), &[])
}
