//! `oip-server`: serves the models in a directory with the Open Inference Protocol over HTTP and gRPC.
//!
//! The binary only combines libraries: it turns options into a configuration, creates an engine and two
//! transports from it, and runs them until a signal arrives.

mod backends;
mod banner;
mod check;
mod commands;
mod descriptors;
mod failure;
#[cfg(feature = "gpu")]
mod gpus;
mod in_place;
mod init;
mod log_settings;
mod log_writer;
mod memory;
mod metrics;
mod model_source;
mod options;
mod percent;
mod start;
mod telemetry;
mod traffic;

use std::{
    io::{Write, stderr},
    process::ExitCode,
};

use crate::{commands::Invocation, failure::Failure, options::Config};

fn main() -> ExitCode {
    caching_allocator::return_freed_memory();
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == backends::WORKER {
        caching_allocator::start_trimming();
        return backends::work(arguments).unwrap_or_else(|failure| fail(&failure));
    }
    #[cfg(feature = "tool")]
    if first == "--tensor" {
        return tensor_cli::run(std::iter::once("tensor".into()).chain(arguments));
    }
    descriptors::raise_limit();
    descriptors::make_room();
    caching_allocator::start_trimming();
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let outcome = commands::run(&arguments).and_then(|asked| match asked {
        Invocation::Serve(options) => Config::resolve(*options).and_then(start::run),
        Invocation::Done(code) => Ok(code),
    });
    outcome.unwrap_or_else(|failure| fail(&failure))
}

fn fail(failure: &Failure) -> ExitCode {
    // Errors are ignored, since standard error may be closed.
    let _ = writeln!(stderr(), "error: {}", failure.message);
    ExitCode::from(failure.exit_code)
}
