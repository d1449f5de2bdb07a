//! The running server: starts everything that the configuration enables, serves until a signal arrives, and
//! shuts down in order.

mod announcer;
mod context;
mod gates;
mod lasting_calls;
mod listening;
mod models;
mod notify;
mod observability;
mod one_port;
mod opening;
mod reloads;
mod runtimes;
mod server;
mod services;
mod signals;
mod transports;

use std::{process::ExitCode, time::Instant};

use oip_telemetry::logging::LogFormat;

use self::{
    context::StartContext, listening::Listening, opening::StartupOutcome, runtimes::Runtimes, server::Server,
    signals::Signals,
};
use crate::{
    failure::Failure,
    options::Config,
    telemetry::{self, LIFE_CYCLE, Log},
};

/// Serves until a signal arrives, and returns the exit code.
pub(crate) fn run(config: Config) -> Result<ExitCode, Failure> {
    let begun = Instant::now();
    let log = telemetry::start(config.log.clone())?;
    for warning in &config.warnings {
        tracing::warn!(target: LIFE_CYCLE, "{warning}");
    }
    let is_json = matches!(log.config.format, LogFormat::Json);
    let outcome = match serve_until_signal(config, &log, begun) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        // With a JSON log, the failure is logged instead of printed, because the log's reader may expect only
        // JSON.
        Err(failure) if is_json => {
            tracing::error!(target: LIFE_CYCLE, reason = failure.message, "the server cannot run");
            Ok(ExitCode::from(failure.exit_code))
        }
        Err(failure) => Err(failure),
    };
    log.write_out();
    outcome
}

/// Serves until a signal arrives. Returns true if all connections were closed and all models stopped in time.
fn serve_until_signal(config: Config, log: &Log, begun: Instant) -> Result<bool, Failure> {
    let runtimes = Runtimes::start()?;
    let context = StartContext {
        runtimes: &runtimes,
        log,
        begun,
    };
    let outcome = serve_on(&context, config);
    runtimes.end();
    outcome
}

fn serve_on(context: &StartContext<'_>, mut config: Config) -> Result<bool, Failure> {
    let front = &context.runtimes.front;
    // Set up before anything slow, because a process with id 1 receives only the signals that it handles.
    let mut signals = {
        let _context = front.enter();
        Signals::catch()?
    };
    config.transports.connections.lanes = Some(context.runtimes.lanes());
    let listening = Listening::open(&mut config, context.runtimes)?;
    let reading = opening::read(config, &listening, context, &mut signals);
    let sources = match front.block_on(reading)? {
        StartupOutcome::Read(sources) => *sources,
        StartupOutcome::Ended { is_clean } => return Ok(is_clean),
    };
    let server = {
        let _context = front.enter();
        Server::start(sources, listening, signals, context)?
    };
    Ok(front.block_on(server.run_until_signal(context.log)))
}
