//! Progress on long work, and the wish to end it.

use std::{
    io::{self, IsTerminal},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::{Failure, Outcome};

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether an interrupt ends the process at once: nothing has been begun that is to be undone or reported.
static ENDS_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Waits for input. An interrupt ends the process at once.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let before = ENDS_AT_ONCE.swap(true, Ordering::SeqCst);
    let waited = wait();
    ENDS_AT_ONCE.store(before, Ordering::SeqCst);
    waited
}

/// From now on Ctrl-C and TERM end a command that only reads at once. In others the first one sets what [`is_interrupted`]
/// returns, so that half-written files are removed, and a second one ends the process.
pub(crate) fn listen_for_interrupts(is_reading_only: bool) -> Outcome {
    ENDS_AT_ONCE.store(is_reading_only, Ordering::SeqCst);
    let heard = || {
        let is_second = IS_INTERRUPTED.swap(true, Ordering::SeqCst);
        if is_second || ENDS_AT_ONCE.load(Ordering::SeqCst) {
            Failure::Interrupted.report();
            std::process::exit(130);
        }
    };
    // A file beyond the system's limit is an error of writing, with a message, instead of the end of the process.
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default())?;
    ctrlc::set_handler(heard).map_err(|error| Failure::Io(io::Error::other(error)))
}

/// Whether the user wants to end it.
pub(crate) fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Ordering::SeqCst)
}

/// A line on a terminal that says how a measurement stands.
#[cfg(feature = "client")]
pub(crate) struct Live(ProgressBar);

#[cfg(feature = "client")]
impl Live {
    /// Nothing is shown where standard error is no terminal.
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
impl Drop for Live {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar with rate and time left, on a terminal, for work that takes long.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    is_shown: bool,
}

impl Progress {
    /// Work that is over sooner shows no bar.
    const PATIENCE: Duration = Duration::from_millis(500);

    /// For work on so many bytes.
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

    /// So many more bytes are done.
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
