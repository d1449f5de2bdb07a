//! Runs the hostile clients of the crate `attack-kit` against a release build of the server.

use std::{env, path::PathBuf};

use anyhow::Result;
use clap::Args;

use crate::{cargo, workspace};

/// Options of `attack`.
#[derive(Args)]
pub(crate) struct AttackOptions {
    /// Run only attacks whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Maximum duration of each attack in seconds
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    #[command(flatten)]
    server: ServerOptions,
}

/// Options of `soak`.
#[derive(Args)]
pub(crate) struct SoakOptions {
    /// Duration in minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Number of times that a second server is restarted by SIGTERM under load
    #[arg(long, default_value_t = 100)]
    restarts: u32,
    /// The --shutdown-delay in milliseconds of every second restart
    #[arg(long, default_value_t = 500, value_name = "MS")]
    shutdown_delay: u64,
    /// Run only these restarts, each with the delay, and no attacks
    #[arg(long)]
    only_restarts: bool,
    #[command(flatten)]
    server: ServerOptions,
}

/// The server under attack.
#[derive(Args)]
struct ServerOptions {
    /// A server that is already built [default: a release build of this tree]
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// MiB of memory above which the server is killed, so that the machine survives
    #[arg(long, default_value_t = 3072, value_name = "MIB")]
    ceiling: usize,
}

/// Runs every attack at full size.
pub(crate) fn attack(options: &AttackOptions) -> Result<()> {
    let seconds = options.seconds.to_string();
    let mut arguments = vec!["attack", "--seconds", &seconds];
    if let Some(only) = &options.only {
        arguments.extend(["--only", only]);
    }
    run(&options.server, &arguments)
}

/// Runs the soak test.
pub(crate) fn soak(options: &SoakOptions) -> Result<()> {
    let (minutes, restarts) = (options.minutes.to_string(), options.restarts.to_string());
    let delay = options.shutdown_delay.to_string();
    let mut arguments = vec!["soak", "--minutes", &minutes, "--restarts", &restarts];
    arguments.extend(["--shutdown-delay", &delay]);
    if options.only_restarts {
        arguments.push("--only-restarts");
    }
    run(&options.server, &arguments)
}

fn run(server: &ServerOptions, arguments: &[&str]) -> Result<()> {
    let program = match &server.server {
        Some(program) => program.clone(),
        None => {
            cargo::run(&["build", "--release", "--package", "oip-server"], &[])?;
            let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
            workspace::root().join(target).join("release/oip-server")
        }
    };
    let (program, ceiling) = (program.to_string_lossy(), server.ceiling.to_string());
    let kit = ["run", "--release", "--package", "attack-kit", "--"];
    let watched = ["--server", &program, "--ceiling", &ceiling];
    cargo::run(&[&kit[..], arguments, &watched].concat(), &[])
}
