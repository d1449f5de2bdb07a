//! Runs that are cancelled at once, or after a number of checks.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::prelude::*;

use crate::cancelling::{Cancellation, Flag, start};

/// Calls `run` as if its request were cancelled.
pub fn while_cancelled<T>(run: impl FnOnce() -> T) -> T {
    let token = Arc::new(Flag::default());
    token.cancel();
    let _run = start(token);
    run()
}

/// A [`Cancellation`] that counts its checks.
#[derive(Debug)]
pub struct Counter {
    checks: AtomicU64,
    most: u64,
}

impl Counter {
    /// Creates a token that is cancelled after `most` checks.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self {
            checks: AtomicU64::new(0),
            most,
        }
    }

    /// Returns the number of checks.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }
}

impl Cancellation for Counter {
    fn is_cancelled(&self) -> bool {
        self.checks.fetch_add(1, Ordering::Relaxed) >= self.most
    }
}

/// Calls `run` as if its request were cancelled after `most` checks. Also returns the number of
/// checks.
pub fn while_counted<T>(most: u64, run: impl FnOnce() -> T) -> (T, u64) {
    let token = Arc::new(Counter::new(most));
    let made = {
        let _run = start(token.clone());
        run()
    };
    (made, token.checks())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancelling::{Pace, is_cancelled};

    #[test]
    fn checks_are_counted_up_to_the_last() {
        let spend = || (0..4).try_for_each(|_| Pace::default().spend(1 << 20));
        let (ended, checks) = while_counted(u64::MAX, spend);
        assert!(ended.is_ok());
        assert_eq!(checks, 4);
        let (ended, checks) = while_counted(2, spend);
        assert!(ended.is_err_and(|error| is_cancelled(&error)));
        assert_eq!(checks, 3);
    }
}
