//! Catches panics of services where transports call them, so that a client gets an error instead of a dropped
//! connection.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use oip_types::ServiceError;
use pin_project_lite::pin_project;

/// Awaits `work` and turns a panic into the error [`Internal`](oip_types::ErrorCode::Internal).
///
/// The panic hook has already written the panic message to the log. A service is shared between requests, so
/// it must remain usable after a panic.
pub fn catch_panic<F: Future>(work: F) -> CatchPanic<F> {
    CatchPanic { work }
}

pin_project! {
    /// A future whose panics become errors; created by [`catch_panic`]. This type must be no larger than `F`,
    /// because request futures are large and are moved.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct CatchPanic<F> {
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, ServiceError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.project().work;
        // After a panic the future must not be polled again; returning `Ready` ensures that.
        match catch_unwind(AssertUnwindSafe(|| work.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(service_panicked())),
        }
    }
}

/// Returns the error for a client whose request panicked.
pub fn service_panicked() -> ServiceError {
    ServiceError::internal("the service panicked; this request is lost, the next one will be tried")
}

#[cfg(test)]
mod tests {
    use futures_executor::block_on;
    use oip_types::ErrorCode;

    use super::*;

    #[test]
    fn a_panic_is_an_error_and_anything_else_passes() {
        assert_eq!(block_on(catch_panic(async { 7 })).unwrap(), 7);
        let panicking = async {
            assert_eq!(1, 2, "on purpose");
        };
        assert_eq!(
            block_on(catch_panic(panicking)).unwrap_err().code(),
            ErrorCode::Internal
        );
    }
}
