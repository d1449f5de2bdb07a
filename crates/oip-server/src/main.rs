//! `oip-server`: serves the models of a folder over the Open Inference Protocol, HTTP and gRPC.
//!
//! The binary only puts libraries together: options become a configuration, the configuration an engine and two
//! transports, and those run until a signal ends them.

mod allocator;
mod app;
mod backends;
mod check;
mod config;
mod descriptors;
mod failure;
mod log_settings;
mod log_writer;
mod metrics;
mod model_source;
mod options;
mod report;
mod signals;
mod source_options;
mod telemetry;
mod units;

use std::{
    io::{Write, stderr},
    process::ExitCode,
};

use clap::Parser;

use crate::{config::Config, failure::Failure, options::Options};

fn main() -> ExitCode {
    allocator::give_back_what_is_freed();
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == backends::WORKER {
        allocator::give_back_what_is_unused();
        return backends::work(arguments).unwrap_or_else(|failure| fail(&failure));
    }
    descriptors::raise_limit();
    descriptors::make_room();
    allocator::give_back_what_is_unused();
    if first == check::CHECK {
        return check::run(arguments).unwrap_or_else(|failure| fail(&failure));
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) if error.use_stderr() => return fail(&Failure::usage(options::one_line(&error))),
        // Help and version are no errors.
        Err(error) => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    match Config::resolve(options).and_then(app::run) {
        Ok(exit_code) => exit_code,
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    // When nobody can read it, it cannot be said.
    let _ = writeln!(stderr(), "error: {}", failure.message);
    ExitCode::from(failure.exit_code)
}
