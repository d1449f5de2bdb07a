//! `oip-server check`: loads everything as the server would, prints the results, and opens no port.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use oip_engine::{Engine, ModelControl};
use oip_types::ModelState;

use crate::{
    banner,
    failure::Failure,
    model_source,
    options::{Config, Options, read_tls},
    telemetry,
};

const EXAMPLES: &str = "\
Examples:
  oip-server check models
  oip-server check iris.onnx --json
  oip-server check --config production.toml";

/// Loads all models as the server would, and prints which of them are ready. Ends with 1 when a model would
/// not be served, or when there is none.
#[derive(Debug, Parser)]
#[command(name = "oip-server check", after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Check {
    /// Print JSON: a list of models with their inputs and outputs, or the reasons why they would not be
    /// served
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: Options,
}

/// Runs the subcommand `check`.
pub(crate) fn run(check: Check) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    let Check { json, mut options } = check;
    // The table shows which models are loaded and why others are not, so the log only reports other problems.
    options
        .log
        .log
        .get_or_insert_with(|| format!("warn,{}=error", oip_engine::UNAVAILABLE));
    let mut config = Config::resolve(options)?;
    config.engine.control = ModelControl::None;
    config.log.tail = None;
    let log = telemetry::start(config.log.clone())?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    read_tls(config.tls.take())?;
    config.access.guard(&config.transports.http.cpu)?;
    let repository = model_source::open(&mut config.models, &config.engine.control)?;
    let passed_over = repository.passed_over();
    let engine = Engine::start(repository, config.engine);
    engine.wait_until_loaded();
    let models = engine.models();
    match json {
        true => banner::as_json(&models, &passed_over),
        false => banner::checked(&models, &passed_over, start.elapsed()),
    }
    engine.stop(Instant::now() + Duration::from_secs(5));
    log.write_out();
    let is_good = !models.is_empty() && models.iter().all(|model| model.state == ModelState::Ready);
    Ok(ExitCode::from(u8::from(!is_good)))
}
