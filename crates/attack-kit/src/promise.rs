//! Checks the guarantees that docs/reliability.md gives for a server under attack.

use std::{fmt, time::Duration};

use attack_kit::{ClientResults, Scale};

/// Maximum latency of a liveness check.
const LONGEST_LIVE: Duration = Duration::from_millis(50);
/// Minimum fraction of their normal rate that well-behaved clients must keep.
const LEAST_SHARE: f64 = 0.5;

/// Returns the guarantees as text.
pub(crate) fn text() -> String {
    format!(
        "promised: at most {} MiB above the idle server; a sign of life within {} ms, and what the machine takes to wake a \
         sleeping thread; good clients keep {} % of their rate (not measured next to floods), none fails; \
         the memory \
         budget is free afterwards",
        Scale::FULL.bound() >> 20,
        LONGEST_LIVE.as_millis(),
        LEAST_SHARE * 100.0,
    )
}

/// The names of the violated guarantees.
#[derive(Default)]
pub(crate) struct Violations(Vec<&'static str>);

impl Violations {
    /// Checks the peak memory relative to the idle server's; `None` means that the server was killed for
    /// using too much.
    pub(crate) fn memory(&mut self, peak: Option<usize>) {
        self.unless(peak.is_some_and(|peak| peak <= Scale::FULL.bound()), "memory");
    }

    /// Checks the results of well-behaved clients.
    pub(crate) fn clients(&mut self, seen: &ClientResults) {
        let late = seen.slowest_live.saturating_sub(seen.slowest_wake);
        self.unless(late <= LONGEST_LIVE, "sign of life");
        self.unless(seen.not_live == 0, "live");
        self.unless(seen.failed == 0, "good clients answered");
    }

    /// Checks that well-behaved clients kept a sufficient share of their normal rate.
    pub(crate) fn share(&mut self, share: f64) {
        self.unless(share >= LEAST_SHARE, "good clients' rate");
    }

    /// Records a violation of the guarantee `part`, unless `is_held` is true.
    pub(crate) fn unless(&mut self, is_held: bool, part: &'static str) {
        if !is_held {
            self.0.push(part);
        }
    }

    /// Adds the violations that `other` recorded.
    pub(crate) fn add(&mut self, other: Self) {
        for part in other.0 {
            self.unless(self.0.contains(&part), part);
        }
    }

    /// Returns whether there was no violation.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => formatter.write_str("held"),
            broken => write!(formatter, "**broken: {}**", broken.join(", ")),
        }
    }
}
