//! Retry policies, and the loop that makes the attempts of a call.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

#[cfg(all(feature = "http", unix))]
use crate::patience::{Patience, Wait};
use crate::{ClientError, ErrorKind};

/// When a call is retried, how often and for how long.
///
/// Pauses double, starting at [`first_delay`](Self::first_delay). Each is shortened by a random jitter of up
/// to half, so that clients do not retry in lockstep, and is at least as long as the server asks for
/// (`Retry-After`, or `grpc-retry-pushback-ms`).
///
/// ```
/// use oip_client::{RetryOn, RetryPolicy};
/// use std::time::Duration;
///
/// let patient = RetryPolicy::default().with(|policy| {
///     policy.attempts = 10;
///     policy.max_total = Duration::from_secs(120);
/// });
/// assert_eq!(patient.on, RetryOn::Refused);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// The failures that are retried.
    pub on: RetryOn,
    /// Maximum number of attempts, including the first (default 3).
    pub attempts: u32,
    /// The first pause (default 100 ms).
    pub first_delay: Duration,
    /// Maximum pause, unless the server asks for a longer one (default 5 s).
    pub max_delay: Duration,
    /// Maximum time from the first attempt to the start of the last (default 30 s).
    pub max_total: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            on: RetryOn::default(),
            attempts: 3,
            first_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(5),
            max_total: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// Returns the policy with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns a policy without retries.
    #[must_use]
    pub fn never() -> Self {
        Self {
            on: RetryOn::Nothing,
            ..Self::default()
        }
    }

    /// Returns the pause before the next attempt; `None` to give up.
    fn pause(&self, error: &ClientError, attempt: u32, is_read: bool, elapsed: Duration) -> Option<Duration> {
        if attempt >= self.attempts || !self.on.covers(error, is_read) {
            return None;
        }
        let doubled = 2u32.saturating_pow(attempt - 1);
        let delay = self.first_delay.saturating_mul(doubled).min(self.max_delay);
        let delay = delay.mul_f64(0.5 + fastrand::f64() / 2.0);
        let delay = delay.max(error.retry_delay().unwrap_or_default());
        Some(delay).filter(|delay| elapsed.saturating_add(*delay) <= self.max_total)
    }
}

/// Which failures are retried. Each variant includes the failures of the variants before it.
///
/// Calls that only read (metadata, health, statistics) are idempotent, so a broken connection is retried
/// under all variants except [`RetryOn::Nothing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RetryOn {
    /// No failure.
    Nothing,
    /// The connection could not be opened: the server never saw the request.
    NotSent,
    /// The server did not start the work and asks to retry later: statuses 429 and 503, `UNAVAILABLE`,
    /// `RESOURCE_EXHAUSTED`.
    #[default]
    Refused,
    /// The connection broke during the call. The model may run twice, which matters if it has side effects.
    Broken,
}

impl RetryOn {
    fn covers(self, error: &ClientError, is_read: bool) -> bool {
        let needed = match error.kind() {
            ErrorKind::Connect => Self::NotSent,
            ErrorKind::Broken if is_read => Self::NotSent,
            ErrorKind::Broken => Self::Broken,
            ErrorKind::Refused if error.is_refused_for_now() => Self::Refused,
            _ => return false,
        };
        self >= needed
    }
}

/// A call: its total timeout and retry policy.
pub(crate) struct Call<'c> {
    pub(crate) policy: &'c RetryPolicy,
    pub(crate) timeout: Option<Duration>,
    /// Whether the call is idempotent.
    pub(crate) is_read: bool,
}

impl Call<'_> {
    /// Makes attempts until one succeeds, time is up, or a retry is not safe. Each attempt gets the remaining
    /// time.
    pub(crate) async fn run<T, F>(
        &self,
        mut attempt: impl FnMut(Option<Duration>) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let start = Instant::now();
        let deadline = self.timeout.and_then(|timeout| start.checked_add(timeout));
        let mut count = 1;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let result = match deadline {
                None => attempt(left).await,
                Some(deadline) => {
                    let over = |_| Err(ClientError::out_of_time(self.timeout.unwrap_or_default()));
                    timeout_at(deadline, attempt(left)).await.unwrap_or_else(over)
                }
            };
            let error = match result {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let Some(pause) = self.pause(&error, count, start.elapsed()) else {
                return Err(error);
            };
            sleep(pause).await;
            count += 1;
        }
    }

    /// Makes attempts on the calling thread, like [`Self::run`].
    #[cfg(all(feature = "http", unix))]
    pub(crate) fn run_here<T>(
        &self,
        patience: &Patience,
        mut attempt: impl FnMut(&Wait<'_>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let start = Instant::now();
        let wait = patience.until(self.timeout);
        let mut count = 1;
        loop {
            let error = match attempt(&wait) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let Some(pause) = self.pause(&error, count, start.elapsed()) else {
                return Err(error);
            };
            wait.pause(pause)?;
            count += 1;
        }
    }

    /// Returns the pause before the next attempt; `None` to give up. If the deadline would pass during the
    /// pause, the current error is returned immediately.
    fn pause(&self, error: &ClientError, attempt: u32, elapsed: Duration) -> Option<Duration> {
        let pause = self.policy.pause(error, attempt, self.is_read, elapsed)?;
        // A server may ask for a longer pause than `Instant` can represent.
        Instant::now().checked_add(pause)?;
        let ends = elapsed.checked_add(pause)?;
        self.timeout.is_none_or(|timeout| ends < timeout).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use oip_types::ErrorCode;

    use super::*;
    use crate::Status;

    fn busy() -> ClientError {
        ClientError::refused(Some(ErrorCode::Overloaded), Status::Http(429), "busy")
    }

    fn pauses(policy: &RetryPolicy, error: &ClientError) -> Vec<Option<Duration>> {
        (1..8)
            .map(|attempt| policy.pause(error, attempt, false, Duration::ZERO))
            .collect()
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let policy = RetryPolicy::default().with(|policy| {
            policy.attempts = 7;
            policy.max_delay = Duration::from_millis(900);
        });
        for _ in 0..100 {
            let pauses = pauses(&policy, &busy());
            for (pause, longest) in pauses.iter().zip([100, 200, 400, 800, 900, 900]) {
                let longest = Duration::from_millis(longest);
                assert!((longest / 2..=longest).contains(&pause.unwrap()), "{pauses:?}");
            }
            assert_eq!(pauses[6], None, "seven attempts are six pauses");
        }
    }

    #[test]
    fn the_servers_wish_is_respected_as_long_as_it_is_within_the_total() {
        let policy = RetryPolicy::default();
        let after = |seconds| busy().retry_after(Some(Duration::from_secs(seconds)));
        let pause = |error: &ClientError| policy.pause(error, 1, false, Duration::from_secs(1));
        assert_eq!(pause(&after(7)), Some(Duration::from_secs(7)));
        assert_eq!(pause(&after(29)), Some(Duration::from_secs(29)));
        assert_eq!(pause(&after(30)), None);
        assert_eq!(pause(&after(u64::MAX)), None);
    }

    #[test]
    fn only_what_is_safe_is_tried_again() {
        let errors = [
            ClientError::new(ErrorKind::Connect, "x"),
            busy(),
            ClientError::new(ErrorKind::Broken, "x"),
            ClientError::new(ErrorKind::Timeout, "x"),
            ClientError::new(ErrorKind::Protocol, "x"),
            ClientError::refused(Some(ErrorCode::Internal), Status::Http(500), "x"),
            ClientError::refused(Some(ErrorCode::TooLarge), Status::Grpc(8), "x"),
            busy().finally(true),
        ];
        let covered = |on: RetryOn, is_read| errors.iter().filter(|error| on.covers(error, is_read)).count();
        let choices = [
            RetryOn::Nothing,
            RetryOn::NotSent,
            RetryOn::Refused,
            RetryOn::Broken,
        ];
        assert_eq!(choices.map(|on| covered(on, false)), [0, 1, 2, 3]);
        assert_eq!(choices.map(|on| covered(on, true)), [0, 2, 3, 3]);
        assert!(
            !RetryOn::Refused.covers(&errors[2], false),
            "a response that broke is not asked for again"
        );
    }

    /// Returns the server's error if its `Retry-After` is longer than `Instant` can represent and the policy
    /// does not limit the total time.
    #[tokio::test]
    async fn a_pause_beyond_all_time_is_the_error_that_asked_for_it() {
        let patient = RetryPolicy::default().with(|policy| policy.max_total = Duration::MAX);
        for timeout in [None, Some(Duration::from_secs(60)), Some(Duration::MAX)] {
            let call = Call {
                policy: &patient,
                timeout,
                is_read: false,
            };
            let attempt = |_| async { Err::<(), _>(busy().retry_after(Some(Duration::from_secs(u64::MAX)))) };
            let error = call.run(attempt).await.unwrap_err();
            assert_eq!(error.status(), Some(Status::Http(429)));
        }
    }
}
