//! The programs behind `cargo xtask attack`, `cargo xtask soak` and `cargo xtask bench serve`.
#![allow(clippy::print_stdout, reason = "these programs print their figures")]

mod callers;
mod cost;
mod full;
mod promise;
mod soak;
mod variants;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "attack-kit")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every attack against a server with default options, and print its effect
    Attack(full::Options),
    /// Mix good and hostile clients, loads, kills and restarts, and print whether anything grows
    Soak(soak::Options),
    /// Measure the cost of a request for several servers, and print a table
    Cost(cost::Options),
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Attack(options) => full::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Cost(options) => cost::run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
