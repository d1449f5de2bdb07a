//! Work that would keep a runtime's thread from other calls.

use tokio::task::spawn_blocking;

use crate::{ClientError, ErrorKind, Result};

/// Does work on a thread of its own, so that it holds up no other call.
pub(crate) async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // Only a panic or the end of the runtime keeps it from coming back.
    let lost = |error| ClientError::new(ErrorKind::Request, "the work on the body was lost").caused_by(error);
    spawn_blocking(work).await.map_err(lost)?
}
