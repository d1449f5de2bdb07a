//! The last lines of a log, kept in memory.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Serialize;

/// The last lines of a log. Clones are the same log.
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
    /// Lines that have ever come.
    count: u64,
}

/// Some lines of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogLines {
    /// The number of the last line of the log, counted from 1; what to ask for the next time.
    pub next: u64,
    /// Lines without their line breaks, oldest first.
    pub lines: Vec<String>,
}

impl LogTail {
    /// Keeps so many lines. How long a line may be is for its writer to bound.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inner {
            most,
            state: Mutex::default(),
        }))
    }

    /// Adds a line; a line break at its end is left out.
    pub fn push(&self, line: &str) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lines.len() >= self.0.most {
            state.lines.pop_front();
        }
        state
            .lines
            .push_back(line.trim_end_matches(['\r', '\n']).to_owned());
        state.count += 1;
    }

    /// The lines after the one with this number that are still kept. A number from before a restart gives all lines.
    #[must_use]
    pub fn after(&self, number: u64) -> LogLines {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
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
