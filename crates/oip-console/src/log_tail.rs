//! The last lines of a log, kept in memory.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use serde::Serialize;

/// The last lines of a log. Clones share the same lines.
///
/// ```
/// let log = oip_console::LogTail::new(2);
/// for line in ["one\n", "two\n", "three\n"] {
///     log.push(line);
/// }
/// assert_eq!(log.after(0).lines, ["two", "three"]);
/// assert_eq!(log.after(2).lines, ["three"]);
/// ```
#[derive(Clone, Debug)]
pub struct LogTail(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<String>,
    /// Number of lines added so far.
    count: u64,
}

/// The lines that [`LogTail::after`] returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogLines {
    /// The number of the log's last line, counted from 1; pass it to the next call of [`LogTail::after`].
    pub next: u64,
    /// The lines without line breaks, oldest first.
    pub lines: Vec<String>,
}

impl LogTail {
    /// Creates a log tail that keeps `most` lines. The writer must limit the length of lines.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inner {
            most,
            state: Mutex::default(),
        }))
    }

    /// Adds a line, without its final line break.
    pub fn push(&self, line: &str) {
        let mut state = self.0.state.lock();
        if state.lines.len() >= self.0.most {
            state.lines.pop_front();
        }
        state
            .lines
            .push_back(line.trim_end_matches(['\r', '\n']).to_owned());
        state.count += 1;
    }

    /// Returns those lines after line `number` that are still kept. A number larger than the count of lines,
    /// such as one from before a restart, returns all lines.
    #[must_use]
    pub fn after(&self, number: u64) -> LogLines {
        let state = self.0.state.lock();
        let new = state.count.checked_sub(number).unwrap_or(state.count);
        let skipped = state
            .lines
            .len()
            .saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
        LogLines {
            next: state.count,
            lines: state.lines.iter().skip(skipped).cloned().collect(),
        }
    }
}
