//! Progress bars, and the handling of interrupts.

use std::{
    io::{self, IsTerminal},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::{Failure, Outcome};

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether an interrupt ends the process immediately, because the command has nothing to undo or report.
static ENDS_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Runs `wait`, which waits for input. Meanwhile, an interrupt ends the process immediately.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let before = ENDS_AT_ONCE.swap(true, Ordering::SeqCst);
    let waited = wait();
    ENDS_AT_ONCE.store(before, Ordering::SeqCst);
    waited
}

/// Handles Ctrl-C and SIGTERM. A read-only command ends immediately. For other commands the first signal sets
/// [`is_interrupted`], so that partial files are removed, and a second signal ends the process.
pub(crate) fn listen_for_interrupts(is_reading_only: bool) -> Outcome {
    ENDS_AT_ONCE.store(is_reading_only, Ordering::SeqCst);
    let heard = || {
        let is_second = IS_INTERRUPTED.swap(true, Ordering::SeqCst);
        if is_second || ENDS_AT_ONCE.load(Ordering::SeqCst) {
            Failure::Interrupted.report();
            std::process::exit(130);
        }
    };
    // Turns exceeding the file size limit into a write error; by default the signal would end the process.
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default())?;
    ctrlc::set_handler(heard).map_err(|error| Failure::Io(io::Error::other(error)))
}

/// Returns whether the user interrupted the command.
pub(crate) fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Ordering::SeqCst)
}

/// A progress line for a measurement.
#[cfg(feature = "client")]
pub(crate) struct ProgressLine(ProgressBar);

#[cfg(feature = "client")]
impl ProgressLine {
    /// Creates the line; hidden if standard error is not a terminal.
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {elapsed}  {wide_msg}");
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner())))
    }

    pub(crate) fn say(&self, text: String) {
        self.0.set_message(text);
        self.0.tick();
    }
}

#[cfg(feature = "client")]
impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A progress bar with rate and remaining time for long work.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    is_shown: bool,
}

impl Progress {
    /// The bar appears only after this time.
    const PATIENCE: Duration = Duration::from_millis(500);

    /// Creates a bar for an operation that reads `bytes` bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
        let style =
            ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left");
        Self {
            bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
            start: Instant::now(),
            is_shown: !io::stderr().is_terminal(),
        }
    }

    /// Advances by `bytes`.
    pub(crate) fn advance(&mut self, bytes: u64) {
        if !self.is_shown && self.start.elapsed() > Self::PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
        }
        self.bar.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
