use std::{
    io::{self, Write, stderr},
    panic,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

use oip_service::Logging;
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    fmt,
    fmt::MakeWriter,
    layer::SubscriberExt,
    registry,
    util::SubscriberInitExt,
};

use crate::{Failure, config::Config, log_settings::LogControl, options::LogFormat};

/// Sends the log to standard error, and panics to the log. Gives what changes the log while the server runs.
pub(crate) fn start(config: &Config) -> Result<Arc<dyn Logging>, Failure> {
    let filter = filter(&config.log)?;
    let layer = fmt::layer()
        .with_writer(LogWriter::start())
        .log_internal_errors(false);
    let layer = match config.log_format {
        LogFormat::Text => layer.with_ansi(false).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let (control, filter) = LogControl::new(filter);
    registry().with(layer.with_filter(filter)).init();
    panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("without a message");
        let place = panic.location().map(ToString::to_string);
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(thread, place, text, "panicked");
    }));
    Ok(Arc::new(control))
}

/// Sends the log of a worker to standard error, which the server reads line by line and puts the time to.
pub(crate) fn start_in_worker(log: &str) -> Result<(), Failure> {
    let layer = fmt::layer().without_time().with_ansi(false).with_writer(stderr);
    let layer = layer.log_internal_errors(false).with_filter(filter(log)?);
    registry().with(layer).init();
    Ok(())
}

fn filter(log: &str) -> Result<Targets, Failure> {
    parse_filter(log).ok_or_else(|| {
        let expected = "expected a level, or levels by target such as info,oip_engine=debug";
        Failure::usage(format!("--log: {expected}, found '{log}'"))
    })
}

/// Reads a filter. A word alone must be a level: one that is misspelled would else be taken for a target.
fn parse_filter(text: &str) -> Option<Targets> {
    let is_sound = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    text.split(',')
        .map(str::trim)
        .all(is_sound)
        .then(|| text.parse().ok())?
}

/// Writes lines to standard error on a thread of its own.
///
/// When nobody reads them they wait, up to a number; then new ones are dropped. Serving never waits for the log.
struct LogWriter(SyncSender<Vec<u8>>);

impl LogWriter {
    /// Lines that may wait.
    const CAPACITY: usize = 4096;

    fn start() -> Self {
        let (sender, lines) = sync_channel::<Vec<u8>>(Self::CAPACITY);
        let writing = move || {
            for line in lines {
                // A closed or full standard error is no reason to stop.
                let _ = stderr().write_all(&line);
            }
        };
        // Without the thread there is no log; the server runs nevertheless.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(writing);
        Self(sender)
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            writer: self,
            bytes: Vec::new(),
        }
    }
}

/// One line on its way; it is sent when it is dropped.
struct Line<'a> {
    writer: &'a LogWriter,
    bytes: Vec<u8>,
}

impl Line<'_> {
    /// Longer lines are cut.
    const MAX_BYTES: usize = 4096;
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if self.bytes.len() > Self::MAX_BYTES {
            self.bytes.truncate(Self::MAX_BYTES);
            self.bytes.push(b'\n');
        }
        let _ = self.writer.0.try_send(std::mem::take(&mut self.bytes));
    }
}
