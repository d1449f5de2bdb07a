//! Tests the console in a real browser: uses every control, and takes screenshots.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, venv, workspace};

/// Options of `browser`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates the virtual environment
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// The browser [default: chromium or google-chrome, whichever is installed]
    #[arg(long, value_name = "PROGRAM")]
    chromium: Option<PathBuf>,
    /// A server that is already built, instead of building one; `tensor` must be next to it
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

/// Packages that the script needs. It drives an installed browser and downloads none. `tritonclient` runs the
/// Python request that the console shows.
const REQUIREMENTS: &[&str] = &["playwright==1.55.0", "tritonclient[http]==2.73.0", "numpy"];

/// The test that compiles the Rust request shown on the page.
const RUST: &str = "crates/oip-client/tests/it/console_snippet.rs";

/// The script's virtual environment.
const ENVIRONMENT: &str = "target/browser-venv";

/// Directory for screenshots.
const SHOTS: &str = "target/browser";

/// Runs in CI if a browser exists and a virtual environment is left from an earlier run, since CI downloads
/// only crates.
pub(crate) fn in_ci() -> Result<()> {
    let is_filled = venv::is_filled(&workspace::root().join(ENVIRONMENT), REQUIREMENTS);
    let missing = match (installed(), is_filled) {
        (None, _) => "no Chromium is installed (apt-get install chromium)",
        (_, false) => "the browser's driver is not installed (cargo xtask browser installs it)",
        _ => {
            let options = Options {
                python: "python3".to_owned(),
                chromium: None,
                server: Some(cargo::programs_of_ci()?.join("oip-server")),
            };
            return run(&options);
        }
    };
    println!("   skipped: {missing}");
    Ok(())
}

/// Uses every control of the console. Returns an error if a control misbehaves or the page reports an error.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chromium = match &options.chromium {
        Some(chromium) => chromium.clone(),
        None => installed()
            .context("no Chromium is installed: apt-get install chromium, or --chromium PROGRAM")?,
    };
    let root = workspace::root();
    let python = venv::environment(&options.python, &root.join(ENVIRONMENT), REQUIREMENTS)?;
    let server = match &options.server {
        Some(server) => server.clone(),
        None => {
            cargo::run(
                &["build", "--package", "oip-server", "--package", "tensor-cli"],
                &[],
            )?;
            workspace::built("debug").join("oip-server")
        }
    };
    let tensor = server.with_file_name("tensor");
    ensure!(
        tensor.is_file(),
        "{} is not there: the request that the page shows for `tensor` is run by it",
        tensor.display()
    );
    let status = Command::new(python)
        .arg(root.join("xtask/browser/console.py"))
        .arg("--server")
        .arg(server)
        .arg("--tensor")
        .arg(tensor)
        .arg("--chromium")
        .arg(chromium)
        .arg("--models")
        .arg(root.join("crates/oip-server/examples/models"))
        .arg("--rust")
        .arg(root.join(RUST))
        .arg("--shots")
        .arg(root.join(SHOTS))
        .status()
        .context("starting the script")?;
    ensure!(status.success(), "the console failed some checks");
    println!("screenshots are in {SHOTS}");
    Ok(())
}

fn installed() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH")?;
    names.iter().find_map(|name| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    })
}
