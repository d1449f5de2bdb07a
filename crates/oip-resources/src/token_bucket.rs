//! A token bucket, for limits on rates.

use std::time::{Duration, Instant};

/// A token bucket: refills at a constant rate up to its capacity.
///
/// ```
/// use oip_resources::TokenBucket;
/// use std::time::{Duration, Instant};
///
/// let start = Instant::now();
/// let mut bucket = TokenBucket::full(2.0, 1.0, start);
/// assert_eq!(bucket.take(start), Ok(()));
/// assert_eq!(bucket.take(start), Err(Duration::from_millis(500)));
/// ```
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: f64,
    capacity: f64,
    tokens: f64,
    since: Instant,
}

impl TokenBucket {
    /// Creates a full bucket with `capacity` tokens that refills at `per_second` tokens per second.
    #[must_use]
    pub fn full(per_second: f64, capacity: f64, now: Instant) -> Self {
        Self {
            per_second,
            capacity,
            tokens: capacity,
            since: now,
        }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// Returns the time until a token is available.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.take_from(1.0, now)
    }

    /// Takes one token, if the bucket has at least `least` tokens.
    ///
    /// # Errors
    /// Returns the time until `least` tokens are available.
    pub fn take_from(&mut self, least: f64, now: Instant) -> Result<(), Duration> {
        let elapsed = now.saturating_duration_since(self.since).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.capacity);
        // Different threads may read slightly different times.
        self.since = self.since.max(now);
        if self.tokens >= least {
            self.tokens -= 1.0;
            return Ok(());
        }
        let missing = (least - self.tokens) / self.per_second;
        Err(Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_with_time() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(2.0, 3.0, start);
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(Duration::from_millis(500)));
        let later = start + Duration::from_millis(500);
        assert_eq!(bucket.take(later), Ok(()));
        assert!(bucket.take(later).is_err());
        // After an idle period, only `capacity` tokens are available.
        let much_later = later + Duration::from_secs(1000);
        for _ in 0..3 {
            assert_eq!(bucket.take(much_later), Ok(()));
        }
        assert!(bucket.take(much_later).is_err());
        assert!(bucket.take(later).is_err());
    }

    #[test]
    fn a_bucket_that_must_refill_first_says_when() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(4.0, 4.0, start);
        for _ in 0..4 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take_from(2.0, start), Err(Duration::from_millis(500)));
        let later = start + Duration::from_millis(500);
        assert_eq!(bucket.take_from(2.0, later), Ok(()));
        assert!(bucket.take_from(2.0, later).is_err());
    }
}
