//! The unread part of an HTTP/1 request body, which has to be consumed before the next request.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

/// Receives a request body that was dropped before its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leftover(Arc<Mutex<Option<Incoming>>>);

/// Maximum number of bytes read to keep the connection usable.
const MAX_BYTES: u64 = 64 << 10;

/// Maximum time for reading [`MAX_BYTES`].
const PATIENCE: Duration = Duration::from_millis(500);

impl Leftover {
    pub(crate) fn put(&self, rest: Incoming) {
        *self.0.lock() = Some(rest);
    }

    /// Reads the unread part of the body if it is short and the client is known to send it (`is_coming`).
    /// Returns whether the connection can be reused.
    ///
    /// Clients that send the head and the body in two writes do not expect the connection to close in
    /// between.
    pub(crate) async fn read(&self, is_coming: bool) -> bool {
        let rest = self.0.lock().take();
        let Some(mut rest) = rest else { return true };
        if !is_coming {
            return false;
        }
        let reading = async {
            let mut read = 0;
            while !rest.is_end_stream() {
                if read + rest.size_hint().lower() > MAX_BYTES {
                    return false;
                }
                match std::future::poll_fn(|cx| std::pin::Pin::new(&mut rest).poll_frame(cx)).await {
                    Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len) as u64,
                    Some(Err(_)) => return false,
                    None => break,
                }
            }
            true
        };
        timeout_at(Instant::now() + PATIENCE, reading)
            .await
            .unwrap_or(false)
    }
}
