//! Counts of the responses to an attack.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

/// Counts of responses by kind.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<String, usize>>>);

impl Tally {
    /// Counts one response.
    pub fn add(&self, answer: impl fmt::Display) {
        if let Ok(mut counts) = self.0.lock() {
            *counts.entry(answer.to_string()).or_default() += 1;
        }
    }

    /// Returns how many responses were counted as `answer`.
    #[must_use]
    pub fn count(&self, answer: &str) -> usize {
        self.0
            .lock()
            .map_or(0, |counts| counts.get(answer).copied().unwrap_or(0))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().map_err(|_| fmt::Error)?;
        let texts: Vec<String> = counts
            .iter()
            .map(|(answer, count)| format!("{count} x {answer}"))
            .collect();
        formatter.write_str(&texts.join(", "))
    }
}
