//! Runs the benchmarks of docs/measured/serving.md, operators.md and files.md.

use std::{env, fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::{cargo, interop_text, python, venv, workspace, zoo};

/// The subject of a benchmark.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Subject {
    /// Tensor files, compared with safetensors and ztensor; writes some GiB to the temporary directory.
    Files,
    /// JSON bodies, compared with sonic-rs and `serde_json`.
    Json,
    /// Models of scikit-learn, with the built-in runtime and with ONNX Runtime.
    Models,
    /// The server as a process.
    Serve,
    /// The installed Python package: files compared with safetensors, the client compared with tritonclient,
    /// and the import. Fetches both from the package index; `-- files`, `-- import` or `-- client` runs one
    /// of them
    Python,
    /// ONNX models whose requests vary in length, with the built-in runtime and with ONNX Runtime; needs
    /// Python 3, and a network for the first run. `-- --server PROGRAM` uses a server that is already built
    Lengths,
    /// Texts per second of CPU time, compared with a Python server with `tokenizers` and ONNX Runtime; needs
    /// Python 3, and a network for the first run. `-- --infinity PYTHON` uses an environment with
    /// `infinity-emb`, `-- --memory 100000` measures the server's memory
    Text,
    /// The cost of TLS, identities, logs, traces and recordings per request.
    Options,
}

impl Subject {
    /// Returns the package and the name of each benchmark of the subject.
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
            Self::Lengths | Self::Options | Self::Python | Self::Text => &[],
        }
    }
}

/// Runs the benchmarks of `subject`, with the arguments in `more`.
pub(crate) fn run(subject: Subject, more: &[String]) -> Result<()> {
    for (package, name) in subject.programs() {
        cargo::run(&["bench", "--package", package, "--bench", name], &[])?;
    }
    match subject {
        Subject::Serve => cost_of_requests(true, more),
        Subject::Options => cost_of_requests(false, &with_defaults(more)),
        Subject::Python => python::bench(more),
        Subject::Lengths => lengths(more),
        Subject::Text => text(more),
        Subject::Files | Subject::Json | Subject::Models => Ok(()),
    }
}

/// Returns the arguments in `more`, preceded by `--with-options`. Unless `more` contains `--only`, also
/// selects a small network.
fn with_defaults(more: &[String]) -> Vec<String> {
    let mut all = vec!["--with-options".to_owned()];
    if !more.iter().any(|option| option.starts_with("--only")) {
        all.extend(["--only", "network 1x64"].map(str::to_owned));
    }
    all.extend_from_slice(more);
    all
}

/// Runs the benchmark script that sends requests of varying lengths.
fn lengths(more: &[String]) -> Result<()> {
    let root = workspace::root();
    let mut script = Command::new(zoo::environment("python3")?);
    script.arg(root.join("xtask/zoo/lengths.py"));
    script.arg("--folder").arg(root.join("target/zoo"));
    if !more.iter().any(|option| option.starts_with("--server")) {
        cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
        script
            .arg("--server")
            .arg(workspace::built("release").join("oip-server"));
    }
    venv::run(script.args(more))
}

/// Runs the benchmark script of text models.
fn text(more: &[String]) -> Result<()> {
    let root = workspace::root();
    let (python, packages) = interop_text::packages("python3", RIVAL)?;
    let mut script = Command::new(python);
    script.arg(root.join("xtask/text/rates.py"));
    if !more.iter().any(|option| option.starts_with("--server")) {
        cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
        script
            .arg("--server")
            .arg(workspace::built("release").join("oip-server"));
    }
    if !more.iter().any(|option| option.starts_with("--tokens")) {
        let example = [
            "build",
            "--release",
            "--package",
            "oip-text",
            "--example",
            "tokens",
        ];
        cargo::run(&example, &[])?;
        script
            .arg("--tokens")
            .arg(workspace::built("release").join("examples/tokens"));
    }
    script.arg("--packages").arg(packages);
    script.arg("--work").arg(root.join("target/bench-text"));
    venv::run(script.args(more))
}

/// The packages of the Python server to compare with.
const RIVAL: &[&str] = &["httptools", "orjson", "starlette", "uvicorn", "uvloop"];

/// Measures the cost of a request to the server, and optionally the cost of a request to bare echo servers,
/// which is the lower bound.
fn cost_of_requests(with_floors: bool, more: &[String]) -> Result<()> {
    let echoes = [("oip-listen", "echo"), ("oip-grpc", "bare_echo")];
    for (package, echo) in echoes.into_iter().filter(|_| with_floors) {
        cargo::run(
            &["build", "--release", "--package", package, "--example", echo],
            &[],
        )?;
    }
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let built = workspace::root().join(target).join("release");
    let path = |name: &str| built.join(name).to_string_lossy().into_owned();
    let server = ["build", "--release", "--package", "oip-server"];
    // Both builds of the server have the same file name, so the build that counts allocations is made first
    // and copied.
    let counting = path("oip-server-counting");
    if with_floors {
        cargo::run(&[&server[..], &["--features", "count-allocations"]].concat(), &[])?;
        fs::copy(path("oip-server"), &counting).with_context(|| counting.clone())?;
    }
    cargo::run(&server, &[])?;
    let network = workspace::root().join("crates/oip-server/examples/models/digits/1/model.onnx");
    let (server, network) = (path("oip-server"), network.to_string_lossy().into_owned());
    let (http_floor, grpc_floor) = (path("examples/echo"), path("examples/bare_echo"));
    let measured = ["--server", &server, "--network", &network];
    let floors: &[&str] = match with_floors {
        true => &[
            "--http-floor",
            &http_floor,
            "--grpc-floor",
            &grpc_floor,
            "--counting",
            &counting,
        ],
        false => &[],
    };
    let kit = ["run", "--release", "--package", "attack-kit", "--", "cost"];
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    cargo::run(&[&kit[..], &measured, floors, &more].concat(), &[])
}
