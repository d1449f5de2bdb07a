//! `cargo xtask image`: builds the server's container image with buildah, runs it with podman, and prints its
//! size and the time to the first response.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::{components, dist, workspace};

/// Options of `image`.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// The CPU architecture of the image. One that differs from this machine's needs a C compiler for it, and
    /// an emulator to run it
    #[arg(long, value_enum, default_value_t = Arch::here())]
    arch: Arch,
    /// A program that is already built, instead of building one as for a release
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Architectures by their names in images.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    fn here() -> Self {
        match std::env::consts::ARCH {
            "aarch64" => Self::Arm64,
            _ => Self::Amd64,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// Builds the program and the image, and runs the image.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let program = match &options.program {
        Some(program) => program.clone(),
        None => dist::server(options.arch.target())?,
    };
    let mut suite = Command::new(&options.python);
    suite
        .arg(root.join("xtask/image/suite.py"))
        .arg(program)
        .arg(root.join("target/image"))
        .args(["--arch", options.arch.name()])
        // This is the tag that the manifests of docs/deploy use.
        .arg("--tag")
        .arg(format!("localhost/oip-server:{}", components::version()?));
    if options.arch != Arch::here() {
        suite.args(["--emulator", dist::emulator(options.arch.target())?]);
    }
    let status = suite.status().context("starting the suite")?;
    ensure!(status.success(), "the image failed some checks");
    Ok(())
}
