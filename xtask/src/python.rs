//! `cargo xtask python` tests the installed Python package, and `cargo xtask bench python` measures it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{
    venv::{environment, run},
    wheel::{self, PACKAGE, build},
    workspace,
};

/// Options of `python`.
#[derive(Args)]
pub(crate) struct TestOptions {
    #[command(flatten)]
    build: wheel::Options,
    /// Run only the tests of files for NumPy, PyTorch and jax, in an environment that has all three (from the
    /// registry, PyTorch downloads gigabytes of GPU libraries)
    #[arg(long)]
    torch: bool,
    /// Test this wheel instead of building one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["debug", "target"])]
    wheel: Option<PathBuf>,
}

/// Packages that the tests need in addition to the wheel itself.
const TEST_REQUIREMENTS: &[&str] = &[
    "pytest",
    "safetensors",
    "ml_dtypes",
    "scikit-learn",
    "joblib",
    "lightgbm",
    "xgboost-cpu",
    "tritonclient[grpc]",
    "trustme",
    "mypy",
    "pyright[nodejs]",
];

/// Packages that the tests of files for PyTorch and jax need.
const TORCH_REQUIREMENTS: &[&str] = &["pytest", "safetensors", "ml_dtypes", "torch", "jax"];

/// Packages that the benchmarks compare the wheel with.
const BENCH_REQUIREMENTS: &[&str] = &["safetensors", "tritonclient[grpc,http]"];

/// Builds the wheel and installs it into an existing environment.
pub(crate) fn install(python: &str, debug: bool, into: &Path) -> Result<()> {
    let wheel = build(&wheel::Options {
        python: python.to_owned(),
        debug,
        target: None,
    })?;
    let reinstall = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--force-reinstall",
    ];
    run(Command::new(into).args(reinstall).arg(&wheel))
}

/// Builds the wheel, installs it into an environment, and runs the benchmarks there.
pub(crate) fn bench(subjects: &[String]) -> Result<()> {
    let folder = workspace::root().join("target/python/bench");
    let python = environment("python3", &folder, BENCH_REQUIREMENTS)?;
    install("python3", false, &python)?;
    let all = ["import", "files", "client"].map(str::to_owned);
    let subjects = if subjects.is_empty() { &all[..] } else { subjects };
    let figures = workspace::root().join(PACKAGE).join("benches/figures.py");
    for subject in subjects {
        run(Command::new(&python)
            .arg(&figures)
            .arg(subject)
            .current_dir(&folder))?;
    }
    Ok(())
}

/// Builds the wheel, installs it into virtual environments, and runs the package's tests in them.
pub(crate) fn test(options: &TestOptions) -> Result<()> {
    let wheel = match &options.wheel {
        // The path is absolute, because the tests run in other directories.
        Some(wheel) => std::path::absolute(wheel)?,
        None => build(&options.build)?,
    };
    let python = &options.build.python;
    let folder = workspace::root().join("target/python");
    if options.torch {
        let python = environment(python, &folder.join("torch"), TORCH_REQUIREMENTS)?;
        return pytest(&python, &wheel, &folder.join("torch"), "test_frameworks.py").map(drop);
    }
    alone(python, &wheel, &folder.join("alone"))?;
    let tests = folder.join("test");
    let python = environment(python, &tests, TEST_REQUIREMENTS)?;
    let folder = pytest(&python, &wheel, &tests, "")?;
    types(&python, &folder)
}

/// Installs the wheel into an empty environment and uses the package, to check that it needs only NumPy.
fn alone(python: &str, wheel: &Path, folder: &Path) -> Result<()> {
    const USE: &str = "import numpy, tensorferry; \
        assert tensorferry.load(tensorferry.save({'x': numpy.ones(3)}))['x'].sum() == 3; \
        import tensorferry.compat.tritonclient.grpc, tensorferry.compat.tritonclient.http; \
        import tensorferry.numpy, tensorferry.torch, tensorferry.flax; \
        print('imported alone, with NumPy', numpy.__version__)";
    run(Command::new(python).args(["-m", "venv", "--clear"]).arg(folder))?;
    let fresh = folder.join("bin/python");
    run(Command::new(&fresh)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .arg(wheel))?;
    run(Command::new(&fresh).args(["-c", USE]).current_dir(folder))?;
    run(Command::new(folder.join("bin/tensorferry"))
        .arg("--help")
        .stdout(Stdio::null()))
}

/// Runs the installed package's tests, or those in one file. Returns the directory in which they ran.
fn pytest(python: &Path, wheel: &Path, environment: &Path, file: &str) -> Result<PathBuf> {
    let reinstall = ["-m", "pip", "install", "--quiet", "--force-reinstall"];
    run(Command::new(python).args(reinstall).arg(wheel))?;
    // This directory has no sources, so only the wheel can be imported.
    let folder = environment.join("run");
    fs::create_dir_all(&folder)?;
    run(Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(workspace::root().join(PACKAGE).join("tests").join(file))
        .env(
            "TENSORFERRY_EXAMPLES",
            workspace::root().join("crates/oip-server/examples"),
        )
        .env("TENSORFERRY_CORPORA", workspace::root().join("crates"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&folder))?;
    Ok(folder)
}

/// Type-checks the installed package, and a program that uses it.
fn types(python: &Path, folder: &Path) -> Result<()> {
    let uses = workspace::root().join(PACKAGE).join("tests/uses.py");
    run(Command::new(python)
        .args([
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            "mypy",
            "--package",
            "tensorferry",
            "--package",
            "tensorferry_model",
        ])
        .current_dir(folder))?;
    run(Command::new(python)
        .args(["-m", "mypy", "--strict", "--cache-dir", "mypy"])
        .arg(&uses)
        .current_dir(folder))?;
    let output = Command::new(python)
        .args(["-c", "import tensorferry; print(tensorferry.__path__[0])"])
        .current_dir(folder)
        .output()
        .context("asking where the package is")?;
    run(Command::new(python.with_file_name("pyright"))
        .arg("--pythonpath")
        .arg(python)
        .arg(String::from_utf8_lossy(&output.stdout).trim())
        .arg(&uses)
        .current_dir(folder))
}
