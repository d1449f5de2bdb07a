//! Timeouts and interruption of blocking calls.

use std::{
    cell::Cell,
    error::Error,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{ClientError, ErrorKind};

/// How long a blocking call may wait. The client's request timeout applies as well.
///
/// ```
/// use oip_client::Patience;
/// use std::time::Duration;
///
/// let patience = Patience::default().within(Duration::from_millis(50));
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Patience {
    pub(crate) timeout: Option<Duration>,
    check: Option<Check>,
}

/// The error of an interrupt check, which ends the call.
type Cause = Box<dyn Error + Send + Sync>;
type Check = Arc<dyn Fn() -> Result<(), Cause> + Send + Sync>;

impl Patience {
    /// Sets a timeout.
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets a check that runs every 100 ms while the thread waits, and when a signal wakes it. An error of
    /// the check ends the call and becomes the source of an [`ErrorKind::Interrupted`] error.
    pub fn unless(mut self, check: impl Fn() -> Result<(), Cause> + Send + Sync + 'static) -> Self {
        self.check = Some(Arc::new(check));
        self
    }

    /// Starts the clock of a call that may take at most `timeout`.
    pub(crate) fn until(&self, timeout: Option<Duration>) -> Wait<'_> {
        Wait {
            timeout,
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            check: self.check.as_ref(),
            checked: Cell::new(Instant::now()),
        }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience")
            .field("timeout", &self.timeout)
            .field("is_checked", &self.check.is_some())
            .finish()
    }
}

/// The deadline and interrupt check of one call.
pub(crate) struct Wait<'p> {
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    check: Option<&'p Check>,
    checked: Cell<Instant>,
}

/// Interval of the interrupt check.
const SLICE: Duration = Duration::from_millis(100);

impl Wait<'_> {
    /// Returns how long the thread may block next. Also runs the interrupt check at its interval, so that the
    /// check runs even while data keeps arriving.
    pub(crate) fn slice(&self) -> Result<Duration, ClientError> {
        if self.check.is_some() && self.checked.get().elapsed() >= SLICE {
            self.check()?;
        }
        self.left()
    }

    fn left(&self) -> Result<Duration, ClientError> {
        let Some(deadline) = self.deadline else {
            return Ok(SLICE);
        };
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(self.is_over()),
            left => Ok(left.min(SLICE)),
        }
    }

    /// Runs the interrupt check and checks the deadline, after a wait that ended without data.
    pub(crate) fn go_on(&self) -> Result<(), ClientError> {
        self.check()?;
        self.left().map(drop)
    }

    fn check(&self) -> Result<(), ClientError> {
        let Some(check) = self.check else {
            return Ok(());
        };
        self.checked.set(Instant::now());
        check().map_err(|cause| {
            let message = format!("the call was interrupted: {cause}");
            ClientError::new(ErrorKind::Interrupted, message).caused_by(cause)
        })
    }

    /// Sleeps for `pause`, unless the call ends earlier.
    pub(crate) fn pause(&self, pause: Duration) -> Result<(), ClientError> {
        let start = Instant::now();
        while let Some(left) = pause.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::sleep(self.slice()?.min(left));
            self.go_on()?;
        }
        Ok(())
    }

    fn is_over(&self) -> ClientError {
        ClientError::out_of_time(self.timeout.unwrap_or_default())
    }
}
