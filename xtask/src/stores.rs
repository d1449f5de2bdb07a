//! `cargo xtask stores`: tests `oip-server` with models at URLs, against servers that implement the cloud
//! protocols (moto for S3 and for Google's XML API, s3s-fs for S3 with verified signatures, Azurite for
//! Azure), and against a small server that imitates the Hub. `xtask/stores/suite.py` runs the tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, workspace};

/// Options of `stores`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates the virtual environment
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// The program that installs Azurite
    #[arg(long, default_value = "npm", value_name = "PROGRAM")]
    npm: String,
    /// Run only checks whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// The directory of the suite.
const SUITE: &str = "xtask/stores";
/// The directory for installed programs. The directory is kept between runs, because installing is slow.
const ENVIRONMENT: &str = "target/stores-suite";
/// The npm package of Azurite, an emulator of Azure's storage.
const AZURITE: &str = "azurite@3.35.0";
/// An S3-compatible server backed by the file system, which verifies signatures; and its version.
const S3S: (&str, &str) = ("s3s-fs", "0.14.1");

/// Installs the suite's requirements, builds the server and runs the checks. Returns an error if any check
/// fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = workspace::root().join(ENVIRONMENT);
    let python = install(options, &folder)?;
    cargo::run(&["build", "--package", "oip-server", "--bin", "oip-server"], &[])?;
    let mut suite = Command::new(python);
    suite
        .arg(workspace::root().join(SUITE).join("suite.py"))
        .arg(workspace::built("debug").join("oip-server"))
        .arg(folder.join("node_modules"))
        .arg(folder.join("bin").join(S3S.0));
    if let Some(only) = &options.only {
        suite.args(["--only", only]);
    }
    let status = suite.status().context("starting the suite")?;
    ensure!(status.success(), "not everything passed");
    Ok(())
}

/// Creates the virtual environment, and installs Azurite and s3s-fs. Reinstalls everything when the
/// requirements change.
fn install(options: &Options, folder: &Path) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let requirements = workspace::root().join(SUITE).join("requirements.txt");
    let wanted = format!(
        "{}{AZURITE}\n{S3S:?}\n",
        fs::read_to_string(&requirements).context("reading the requirements")?
    );
    let marker = folder.join("installed.txt");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    println!("filling {ENVIRONMENT}");
    call(
        Command::new(&options.python)
            .args(["-m", "venv", "--clear"])
            .arg(folder),
    )?;
    call(
        Command::new(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--requirement",
            ])
            .arg(&requirements),
    )?;
    call(
        Command::new(&options.npm)
            .args(["install", "--silent", "--no-save", "--prefix"])
            .arg(folder)
            .arg(AZURITE),
    )?;
    let (name, version) = S3S;
    call(
        Command::new(env!("CARGO"))
            .args([
                "install",
                name,
                "--version",
                version,
                "--locked",
                "--debug",
                "--force",
            ])
            .args(["--features", "binary", "--root"])
            .arg(folder)
            .arg("--target-dir")
            .arg(folder.join("s3s-target")),
    )?;
    fs::write(marker, wanted)?;
    Ok(python)
}

fn call(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("starting {}", command.get_program().to_string_lossy()))?;
    ensure!(status.success(), "`{command:?}` failed");
    Ok(())
}
