//! Forwards a worker's standard output and error, and the details of its errors, to the server's log, and
//! derives the reason for a crash from them.

use std::{
    fmt::{self, Write},
    io::{self, BufRead, BufReader, PipeReader, Read},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use oip_resources::TokenBucket;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::messages::Failure;

/// Burst size and rate per second of one worker's logged lines. A model that prints a lot must not fill the
/// disk.
const MOST_LINES: f64 = 1000.0;
const LINES_A_SECOND: f64 = 10.0;

/// Burst size and rate per second of errors with details. A model that fails on every request must not fill
/// the disk either.
const MOST_DETAILS: f64 = 100.0;
const DETAILS_A_SECOND: f64 = 1.0;

/// Maximum length of a logged line, in bytes.
const MAX_LINE: u64 = 1024;

/// Prefix of a line whose next character is its log level.
const LEVEL: char = '\u{1e}';

/// Reads the output of one worker and forwards it to the server's log.
pub(crate) struct WorkerLog {
    shared: Arc<SharedLog>,
    model: String,
    pid: u32,
    /// Rate limit of errors with details.
    details: Mutex<Details>,
}

#[derive(Default)]
struct SharedLog {
    state: Mutex<State>,
    changed: Condvar,
}

struct Details {
    allowance: Allowance,
    left_out: u64,
}

#[derive(Default)]
struct State {
    hint: Option<&'static str>,
    have_ended: bool,
}

impl WorkerLog {
    /// Reads lines on a separate thread until the worker closes its output, and then calls `on_end`.
    pub(crate) fn listen(
        said: PipeReader,
        model: &str,
        pid: u32,
        on_end: impl Fn() + Send + 'static,
    ) -> Self {
        let shared = Arc::new(SharedLog::default());
        let listening = {
            let (shared, model) = (shared.clone(), model.to_owned());
            move || {
                let mut lines = BufReader::new(said);
                let mut allowance = Allowance::new(MOST_LINES, LINES_A_SECOND, Instant::now());
                while let Some(line) = next_line(&mut lines).filter(|line| !line.is_empty()) {
                    let line = String::from_utf8_lossy(&line);
                    let (level, line) = level_of(line.trim_end());
                    if let Some(hint) = hint(line) {
                        shared.lock().hint = Some(hint);
                    }
                    if line.is_empty() || !level.is_enabled() {
                        continue;
                    }
                    match allowance.take(Instant::now()) {
                        Verdict::Logged => level.log(&model, pid, line),
                        Verdict::FirstDropped => {
                            tracing::warn!(model, pid, "a worker writes more than is logged");
                        }
                        Verdict::Dropped => {}
                    }
                }
                shared.lock().have_ended = true;
                shared.changed.notify_all();
                on_end();
            }
        };
        // Without this thread the worker's output is lost. A worker that prints a lot then blocks and counts
        // as hanging.
        let builder = thread::Builder::new()
            .name("worker-log".to_owned())
            .stack_size(128 << 10);
        if builder.spawn(listening).is_err() {
            shared.lock().have_ended = true;
        }
        let details = Details {
            allowance: Allowance::new(MOST_DETAILS, DETAILS_A_SECOND, Instant::now()),
            left_out: 0,
        };
        Self {
            shared,
            model: model.to_owned(),
            pid,
            details: Mutex::new(details),
        }
    }

    /// Logs the details of an error as one event, if it has any.
    pub(crate) fn failed(&self, failed: &mut Failure) {
        let Some(details) = failed.take_details() else {
            return;
        };
        let left_out = {
            let mut state = self.details.lock();
            if state.allowance.take(Instant::now()) != Verdict::Logged {
                state.left_out += 1;
                return;
            }
            std::mem::take(&mut state.left_out)
        };
        let (model, pid) = (&self.model, self.pid);
        if left_out > 0 {
            tracing::warn!(
                model,
                pid,
                left_out,
                "a model failed more often than tracebacks are logged"
            );
        }
        let traceback = IndentedText(details.trim_end());
        tracing::error!(model, pid, %traceback, "a model failed");
    }

    /// Returns whether all output has been read.
    pub(crate) fn have_ended(&self) -> bool {
        self.shared.lock().have_ended
    }

    /// Waits until all output has been read, but at most `patience`: a process that the worker started may
    /// keep the pipe open.
    pub(crate) fn wait_for_the_last(&self, patience: Duration) {
        let ended = |state: &mut State| !state.have_ended;
        self.shared
            .changed
            .wait_while_for(&mut self.shared.lock(), ended, patience);
    }

    /// Returns the reason for a crash, guessed from the output. The returned string never quotes the output,
    /// because a model can print anything.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        self.shared.lock().hint
    }
}

impl SharedLog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Displays a string of several lines. Each line is preceded by a line break and four spaces, so that none of
/// them looks like a log event.
struct IndentedText<'t>(&'t str);

impl fmt::Display for IndentedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.0.split('\n') {
            f.write_str("\n    ")?;
            for char in line.trim_end_matches('\r').chars() {
                match char {
                    '\t' => f.write_char('\t')?,
                    control if control.is_control() => write!(f, "{}", control.escape_default())?,
                    char => f.write_char(char)?,
                }
            }
        }
        Ok(())
    }
}

/// The log level of a line of the worker's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    Warning,
    Info,
    Debug,
}

impl Level {
    fn is_enabled(self) -> bool {
        match self {
            Self::Debug => tracing::enabled!(tracing::Level::DEBUG),
            _ => true,
        }
    }

    fn log(self, model: &str, pid: u32, line: &str) {
        match self {
            Self::Error => tracing::error!(model, pid, line, "a worker wrote to its log"),
            Self::Warning => tracing::warn!(model, pid, line, "a worker wrote to its log"),
            Self::Info => tracing::info!(model, pid, line, "a worker wrote to its log"),
            Self::Debug => tracing::debug!(model, pid, line, "a worker wrote to its log"),
        }
    }
}

/// Splits a line into its level and its message.
fn level_of(line: &str) -> (Level, &str) {
    let Some(marked) = line.strip_prefix(LEVEL) else {
        return (Level::Info, line);
    };
    let known = [
        ('E', Level::Error),
        ('W', Level::Warning),
        ('I', Level::Info),
        ('D', Level::Debug),
    ];
    let found = known
        .into_iter()
        .find_map(|(mark, level)| Some((level, marked.strip_prefix(mark)?)));
    found.unwrap_or((Level::Info, marked))
}

/// The number of log events that may still be logged.
struct Allowance {
    bucket: TokenBucket,
    a_second: f64,
    is_dropping: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Logged,
    /// The first event that is dropped after logged ones.
    FirstDropped,
    Dropped,
}

impl Allowance {
    /// Creates an allowance for bursts of `most` events, and for `a_second` events per second.
    fn new(most: f64, a_second: f64, now: Instant) -> Self {
        Self {
            bucket: TokenBucket::full(a_second, most, now),
            a_second,
            is_dropping: false,
        }
    }

    fn take(&mut self, now: Instant) -> Verdict {
        // After an event was dropped, the bucket must refill with the tokens of one second before events are
        // logged again. This limits the number of reports about dropped events.
        let least = if self.is_dropping { self.a_second } else { 1.0 };
        if self.bucket.take_from(least, now).is_ok() {
            self.is_dropping = false;
            return Verdict::Logged;
        }
        match std::mem::replace(&mut self.is_dropping, true) {
            false => Verdict::FirstDropped,
            true => Verdict::Dropped,
        }
    }
}

/// Returns the next line, cut to the maximum length. Returns `None` if reading fails, and an empty line at
/// the end of the output.
fn next_line(lines: &mut BufReader<PipeReader>) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).ok()?;
    if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
        skip_line(lines).ok()?;
    }
    Some(line)
}

fn skip_line(lines: &mut BufReader<PipeReader>) -> io::Result<()> {
    loop {
        let part = lines.fill_buf()?;
        let end = part.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(part.len(), |end| end + 1);
        let is_over = end.is_some() || part.is_empty();
        lines.consume(count);
        if is_over {
            return Ok(());
        }
    }
}

/// Recognizes the messages that Rust, C++ and this project's Python code print before they abort.
fn hint(line: &str) -> Option<&'static str> {
    let known = [
        ("has overflowed its stack", "out of its stack"),
        ("memory allocation of ", "out of memory"),
        ("bad_alloc", "out of memory"),
        ("the process is at the limit of its memory", "out of memory"),
    ];
    let found = known.into_iter().find(|(words, _)| line.contains(words));
    found.map(|(_, meaning)| meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_levels() {
        assert_eq!(level_of("\u{1e}Eno room"), (Level::Error, "no room"));
        assert_eq!(level_of("\u{1e}Dx"), (Level::Debug, "x"));
        assert_eq!(level_of("\u{1e}?"), (Level::Info, "?"));
        assert_eq!(level_of("  Error"), (Level::Info, "  Error"));
    }

    #[test]
    fn no_line_of_a_traceback_looks_like_an_event() {
        let text = "Traceback:\r\n  File \"x\"\n\u{1b}[2JValueError: ü\t";
        assert_eq!(
            IndentedText(text).to_string(),
            "\n    Traceback:\n      File \"x\"\n    \\u{1b}[2JValueError: ü\t"
        );
    }

    #[test]
    fn a_flood_is_cut_and_a_trickle_is_not() {
        let start = Instant::now();
        let mut allowance = Allowance::new(MOST_LINES, LINES_A_SECOND, start);
        let verdicts: Vec<_> = (0..1003).map(|_| allowance.take(start)).collect();
        assert!(verdicts[..1000].iter().all(|verdict| *verdict == Verdict::Logged));
        assert_eq!(
            verdicts[1000..],
            [Verdict::FirstDropped, Verdict::Dropped, Verdict::Dropped]
        );
        // Half a second later the bucket has five tokens, too few to resume.
        assert_eq!(
            allowance.take(start + Duration::from_millis(500)),
            Verdict::Dropped
        );
        let later = start + Duration::from_secs(2);
        assert!((0..10).all(|_| allowance.take(later) == Verdict::Logged));
        // At four per second the bucket never empties.
        for second in 0..2000 {
            let now = later + Duration::from_millis(250 * (second + 1));
            assert_eq!(allowance.take(now), Verdict::Logged);
        }
    }
}
