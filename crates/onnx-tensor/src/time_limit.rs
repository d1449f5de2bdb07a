//! The time limit of a model's preparation, which constant folding checks.

use std::{cell::Cell, time::Instant};

use crate::prelude::*;

use crate::faults::OutOfTime;

thread_local! {
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets a time limit for this thread until the returned value is dropped. Outer limits also apply.
pub fn until(end: Option<Instant>) -> TimeLimit {
    let outer = END.get();
    END.set(outer.into_iter().chain(end).min());
    TimeLimit { outer }
}

/// Guard of [`until`]: restores the outer time limit when dropped.
#[must_use]
pub struct TimeLimit {
    outer: Option<Instant>,
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        END.set(self.outer);
    }
}

/// Returns the time limit of this thread.
pub fn end() -> Option<Instant> {
    END.get()
}

/// Checks the time limit.
///
/// # Errors
/// Returns [`OutOfTime`] if the limit has passed.
pub fn check() -> Result<()> {
    match END.get() {
        Some(end) if Instant::now() > end => Err(OutOfTime.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn start(limit: Duration) -> TimeLimit {
        until(Some(Instant::now() + limit))
    }

    #[test]
    fn it_fails_after_the_end_and_only_then() {
        assert!(check().is_ok());
        let outer = start(Duration::from_secs(3600));
        {
            let _inner = start(Duration::ZERO);
            std::thread::sleep(Duration::from_millis(1));
            assert!(check().is_err());
        }
        assert!(check().is_ok(), "the outer limit holds again");
        drop(outer);
        assert!(END.get().is_none());
        let _outer = until(Some(Instant::now()));
        let _inner = start(Duration::from_secs(3600));
        std::thread::sleep(Duration::from_millis(1));
        assert!(check().is_err(), "the outer limit holds for what is inside");
    }
}
