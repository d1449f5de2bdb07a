//! `cargo xtask image`: the server as an image, built by buildah and run by podman; prints its size and how soon it answers.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, workspace};

/// What to put into it.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// A program that is built already, instead of a release build of this tree
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Builds the program, the image of it, and runs that.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            cargo::run(
                &[
                    "build",
                    "--release",
                    "--package",
                    "oip-server",
                    "--bin",
                    "oip-server",
                ],
                &[],
            )?;
            workspace::built("release").join("oip-server")
        }
    };
    let status = Command::new(&options.python)
        .arg(root.join("xtask/image/suite.py"))
        .arg(program)
        .arg(root.join("target/image"))
        .status()
        .context("starting the suite")?;
    ensure!(status.success(), "the image is not as it should be");
    Ok(())
}
