use std::time::Duration;

/// How long requests may take, from their first byte to their answer.
///
/// ```
/// use oip_service::TimeLimits;
/// use std::time::Duration;
///
/// let limits = TimeLimits::default().with(|limits| limits.max = Duration::from_secs(60));
/// assert_eq!(limits.default, Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TimeLimits {
    /// For requests that do not say (30 s).
    pub default: Duration,
    /// The longest that a request may ask for (300 s).
    pub max: Duration,
}

impl TimeLimits {
    /// The same after some changes.
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
