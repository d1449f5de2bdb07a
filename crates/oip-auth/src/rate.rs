//! Rate limits for identities.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A token bucket that limits the calls of an identity.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    burst: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: f64,
    since: Instant,
}

impl Rate {
    /// Creates a full bucket that refills at `per_second` up to `burst`.
    pub(crate) fn new(per_second: f64, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            per_second,
            burst,
            state: Mutex::new(State {
                left: burst,
                since: now,
            }),
        }
    }

    /// Takes a token for one call. If the bucket is empty, returns the time until a token is available.
    pub(crate) fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(state.since).as_secs_f64();
        state.left = (state.left + elapsed * self.per_second).min(self.burst);
        state.since = state.since.max(now);
        if state.left >= 1.0 {
            state.left -= 1.0;
            return Ok(());
        }
        // The result is at most the time for one call at the lowest rate, which fits into a `Duration`.
        Err(Duration::from_secs_f64((1.0 - state.left) / self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_back_with_time() {
        let start = Instant::now();
        let rate = Rate::new(2.0, 3, start);
        for _ in 0..3 {
            assert_eq!(rate.take(start), Ok(()));
        }
        assert_eq!(rate.take(start), Err(Duration::from_millis(500)));
        let later = start + Duration::from_millis(500);
        assert_eq!(rate.take(later), Ok(()));
        assert!(rate.take(later).is_err());
        // After an idle period, only `burst` calls are available.
        let much_later = later + Duration::from_secs(1000);
        for _ in 0..3 {
            assert_eq!(rate.take(much_later), Ok(()));
        }
        assert!(rate.take(much_later).is_err());
        // Different threads may read slightly different times.
        assert!(rate.take(later).is_err());
    }
}
