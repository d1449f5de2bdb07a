//! The project's own tasks. `cargo xtask --help` lists them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these tasks talk to a person at a terminal"
)]

mod attack;
mod bench;
mod cargo;
mod ci;
mod circles;
mod codegen;
mod corpus;
mod deploy;
mod interop;
mod interop_ztensor;
mod python;
mod readmes;
mod rustfmt;
mod schemas;
mod sizes;
mod tidy;
mod workspace;
mod zoo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tasks")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Generate code from proto/ (pure Rust, needs no protoc) and schemas/ (changes need the feature `flatc`), and each library's README
    Codegen {
        /// Write nothing; fail when a committed file is stale
        #[arg(long)]
        check: bool,
    },
    /// Hold the house rules: layout, dependency arrows, documentation; report large files
    Tidy,
    /// Write the files that the formats' tests judge anew, from the code that makes them
    Corpus,
    /// Run the benchmarks of docs/benchmarks.md
    Bench {
        /// What to measure
        subject: bench::Subject,
    },
    /// Run every attack against a server with default options, a release build, with good clients beside; prints a table
    Attack(attack::AttackOptions),
    /// Mix good and hostile clients, loads, kills and restarts for a long time; fails when anything is lost or grows
    Soak(attack::SoakOptions),
    /// Drive the servers with the clients of others, in Python, or read files of others; needs Python 3 and a network for the
    /// first run
    Interop(interop::Options),
    /// Hold the answers to real models of public Python packages against ONNX Runtime; needs Python 3 and a network
    Zoo(zoo::Options),
    /// Hold the manifests of docs/deploy against the schemas of Kubernetes and KServe; needs Python 3, kubectl and a network for the
    /// first run
    Deploy(deploy::Options),
    /// Build the Python package `tensorferry` as a wheel, with the programs in it; needs Python 3.11 and a network for the first run
    Wheel(python::Options),
    /// Build the wheel, install it into a new environment, and run its tests there
    Python(python::Options),
    /// Print how many crates the protocol's crates depend on, and how long they take to build from nothing
    Sizes,
    /// Run everything that must be green: fmt, clippy, tests, rustdoc, codegen freshness
    Ci,
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Codegen { check } => codegen::run(check),
        Task::Tidy => tidy::run(),
        Task::Corpus => corpus::run(),
        Task::Bench { subject } => bench::run(subject),
        Task::Attack(options) => attack::attack(&options),
        Task::Soak(options) => attack::soak(&options),
        Task::Interop(options) => interop::run(&options),
        Task::Zoo(options) => zoo::run(&options),
        Task::Deploy(options) => deploy::run(&options),
        Task::Wheel(options) => python::wheel(&options),
        Task::Python(options) => python::test(&options),
        Task::Sizes => sizes::run(),
        Task::Ci => ci::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
