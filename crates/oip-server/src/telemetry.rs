//! Sets up logging for the server and for worker processes.

use std::{io::stderr, panic, path::Path, sync::Arc, thread, time::Duration};

use oip_telemetry::logging::{self, LogControl, LogFormat, LogWriter, parse_levels};
use tracing_subscriber::{
    Layer, filter::Targets, fmt, layer::SubscriberExt, registry, util::SubscriberInitExt,
};

use crate::{
    failure::Failure,
    options::{DEFAULT_LOG, LogConfig, read_file},
};

/// Log target of life-cycle messages from all modules.
pub(crate) const LIFE_CYCLE: &str = "oip_server::app";

/// Handles of the running log.
pub(crate) struct Log {
    pub(crate) config: LogConfig,
    /// Changes the log levels at run time.
    pub(crate) control: Arc<LogControl>,
    pub(crate) writer: LogWriter,
}

impl Log {
    /// Waits until the last lines are written. The wait has a timeout, because a full pipe may have no
    /// reader.
    pub(crate) fn write_out(&self) {
        self.writer.flush(Duration::from_millis(500));
    }
}

/// Starts logging to standard error, and logs panics.
pub(crate) fn start(config: LogConfig) -> Result<Log, Failure> {
    let filter = filter(&config.filter)?;
    let tail = config
        .tail
        .clone()
        .map(|tail| Box::new(move |line: &str| tail.push(line)) as logging::LogTail);
    let writer = LogWriter::start(config.format, "oip_server", tail);
    let layer = fmt::layer()
        .with_writer(writer.clone())
        .log_internal_errors(false);
    let layer = match config.format {
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
        _ => layer.with_ansi(false).boxed(),
    };
    let (control, filter) = LogControl::new(filter);
    registry().with(layer.with_filter(filter)).init();
    log_panics();
    Ok(Log {
        config,
        control: Arc::new(control),
        writer,
    })
}

/// Reloads the log levels from a configuration file. If the file sets no levels, the default applies.
pub(crate) fn reload(control: &LogControl, file: &Path) -> Result<String, String> {
    let options = read_file(file).map_err(|failure| failure.message)?;
    let log = options.log.log.as_deref().unwrap_or(DEFAULT_LOG);
    let filter = filter(log).map_err(|failure| failure.message)?;
    control
        .restart(filter)
        .map_err(|error| error.message().to_owned())?;
    Ok(log.to_owned())
}

/// Starts a worker's log on standard error. The server reads it line by line and adds timestamps.
pub(crate) fn start_in_worker(log: &str) -> Result<(), Failure> {
    let layer = fmt::layer().without_time().with_ansi(false).with_writer(stderr);
    let layer = layer.log_internal_errors(false).with_filter(filter(log)?);
    registry().with(layer).init();
    log_panics();
    Ok(())
}

/// Logs panics instead of printing the standard message, which contains paths of the build machine.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("without a message");
        let place = panic.location().map(|place| short(&place.to_string()).to_owned());
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(thread, place, text, "panicked");
    }));
}

fn filter(log: &str) -> Result<Targets, Failure> {
    parse_levels(log).ok_or_else(|| {
        let expected = "expected a level, or levels by target such as info,oip_engine=debug";
        Failure::usage(format!("--log: {expected}, found '{log}'"))
    })
}

/// Strips the directories of the build machine from a source location.
fn short(place: &str) -> &str {
    let crates = place.split_once("/registry/src/").map(|(_, rest)| rest);
    let after_index = crates.and_then(|rest| rest.split_once('/')).map(|(_, rest)| rest);
    let library = || place.split_once("/library/").map(|(_, rest)| rest);
    let own = || place.find("/crates/").map(|at| &place[at + 1..]);
    after_index.or_else(library).or_else(own).unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a panic of an isolated model is logged in one line, without paths of the build machine.
    #[test]
    fn panics_in_workers_are_lines_of_the_log() {
        const CHILD: &str = "OIP_TEST_PANICS";
        if std::env::var_os(CHILD).is_some() {
            start_in_worker("info")
                .map_err(|failure| failure.message)
                .unwrap();
            // The slice panics inside the crate `bytes`, whose source is in cargo's directory.
            let _ = thread::spawn(|| bytes::Bytes::from_static(b"x").slice(5..)).join();
            return;
        }
        let name = "telemetry::tests::panics_in_workers_are_lines_of_the_log";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "")
            .output()
            .unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        let line = log.lines().find(|line| line.contains("panicked")).unwrap();
        assert!(
            line.contains("place=\"bytes-") && line.contains("thread="),
            "{log}"
        );
        assert!(
            !log.contains("/registry/") && !log.contains("RUST_BACKTRACE"),
            "{log}"
        );
    }

    #[test]
    fn places_say_nothing_of_the_machine() {
        for (place, short_place) in [
            (
                "/home/x/.cargo/registry/src/index-1/bytes-1.10.1/src/a.rs:1:2",
                "bytes-1.10.1/src/a.rs:1:2",
            ),
            (
                "/rustc/abc/library/core/src/option.rs:5:6",
                "core/src/option.rs:5:6",
            ),
            (
                "/home/x/tensorferry/crates/tree-eval/src/eval.rs:1:1",
                "crates/tree-eval/src/eval.rs:1:1",
            ),
            (
                "crates/tree-eval/src/eval.rs:1:1",
                "crates/tree-eval/src/eval.rs:1:1",
            ),
        ] {
            assert_eq!(short(place), short_place);
        }
    }
}
