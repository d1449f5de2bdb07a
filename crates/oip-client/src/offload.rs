//! Moves long work off the runtime's threads.

use tokio::task::spawn_blocking;

use crate::{ClientError, ErrorKind, Result};

/// Runs `work` on a blocking thread.
pub(crate) async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // The result is lost only if the work panics or the runtime shuts down.
    let lost = |error| ClientError::new(ErrorKind::Request, "the work on the body was lost").caused_by(error);
    spawn_blocking(work).await.map_err(lost)?
}
