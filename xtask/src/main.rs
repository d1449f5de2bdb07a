//! The project's own tasks. `cargo xtask --help` lists them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these tasks talk to a person at a terminal"
)]

mod ci;
mod codegen;
mod schemas;
mod tidy;
mod workspace;

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
    /// Generate code from proto/ (pure Rust, needs no protoc) and schemas/ (changes need the feature `flatc`)
    Codegen {
        /// Write nothing; fail when a committed file is stale
        #[arg(long)]
        check: bool,
    },
    /// Hold the house rules: layout, dependency arrows, documentation; report large files
    Tidy,
    /// Run everything that must be green: fmt, clippy, tests, rustdoc, codegen freshness
    Ci,
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Codegen { check } => codegen::run(check),
        Task::Tidy => tidy::run(),
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
