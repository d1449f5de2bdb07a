//! Panics of services: caught where transports call them, so that a client gets an error and not a cut connection.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

use oip_types::ServiceError;

/// Awaits work that a service does; a panic in it becomes an error.
///
/// The panic hook has run by then, so the log has the panic itself. A service that is shared between requests must stay
/// usable after a panic, as it must when one of its threads panics.
///
/// # Errors
/// [`Internal`](oip_types::ErrorCode::Internal) when the work panics.
pub async fn catch_panic<F: Future>(work: F) -> Result<F::Output, ServiceError> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        // The future is not polled again after a panic.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(service_panicked())),
        }
    })
    .await
}

/// What a client is told whose request panicked.
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
