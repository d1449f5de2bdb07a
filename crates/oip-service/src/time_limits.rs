use std::time::Duration;

/// How long requests may take, from their first byte to their answer.
///
/// ```
/// use oip_service::TimeLimits;
/// use std::time::Duration;
///
/// assert_eq!(TimeLimits::default().default, Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// For requests that do not say (30 s).
    pub default: Duration,
    /// The longest that a request may ask for (300 s).
    pub max: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            default: Duration::from_secs(30),
            max: Duration::from_secs(300),
        }
    }
}
