//! The benchmarks behind docs/benchmarks.md.

use anyhow::Result;
use clap::ValueEnum;

use crate::cargo;

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
            Self::Serve => &[("oip-server", "serve"), ("oip-server", "per_request")],
        }
    }
}

/// Runs the programs of a subject, one after the other.
pub(crate) fn run(subject: Subject) -> Result<()> {
    for (package, name) in subject.programs() {
        cargo::run(&["bench", "--package", package, "--bench", name], &[])?;
    }
    Ok(())
}
