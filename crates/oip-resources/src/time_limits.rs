//! Default and maximum durations of requests.

use std::time::Duration;

/// How long requests may take, from their first byte to their response.
///
/// ```
/// use oip_resources::TimeLimits;
/// use std::time::Duration;
///
/// let limits = TimeLimits::default().with(|limits| limits.max = Duration::from_secs(60));
/// assert_eq!(limits.default, Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TimeLimits {
    /// Time limit of requests without a timeout. Default: 30 s.
    pub default: Duration,
    /// Longest timeout that a request may set. Default: 300 s.
    pub max: Duration,
}

impl TimeLimits {
    /// Returns the limits after `change`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            default: Duration::from_secs(30),
            max: Duration::from_secs(300),
        }
    }
}
