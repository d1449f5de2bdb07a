//! What all connections of HTTP/2 share: open streams, and bytes that are received before they are read.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many streams there may be at once over all connections that share it, beside the first few of each connection.
///
/// A stream that finds no room is refused with `REFUSED_STREAM`, which tells its client that nothing of it was done.
#[derive(Clone, Debug)]
pub struct StreamCap(Arc<Semaphore>);

impl StreamCap {
    /// A cap of so many streams.
    #[must_use]
    pub fn new(streams: usize) -> Self {
        Self(Arc::new(Semaphore::new(streams.min(Semaphore::MAX_PERMITS))))
    }

    /// Room for one stream, if there is some.
    pub(crate) fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}

/// Bytes of memory for large windows, over all connections that share it.
///
/// Clients send as much as the window of their connection allows before the service reads it. The first connections have
/// large windows, for speed on links that are long; those that come when all memory for that is given away have small
/// ones.
#[derive(Clone, Debug)]
pub struct Windows(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    used: AtomicU64,
}

/// Bytes of a large window. A connection whose way there and back takes 1 ms carries 256 MiB/s with it.
const LARGE: u32 = 256 << 10;
/// Bytes of a small window, the least that HTTP/2 allows.
const SMALL: u32 = 65_535;

impl Windows {
    /// So many bytes for large windows.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Shared {
            limit: bytes,
            used: AtomicU64::new(0),
        }))
    }

    /// The window of a new connection.
    pub(crate) fn take(&self) -> Window {
        let Shared { limit, used } = &*self.0;
        let more = |used: u64| used.checked_add(LARGE.into()).filter(|used| used <= limit);
        let is_large = used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok();
        Window(is_large.then(|| self.0.clone()))
    }
}

/// The window of a connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Window(Option<Arc<Shared>>);

impl Window {
    /// Bytes that the connection may send before they are read.
    pub(crate) fn bytes(&self) -> u32 {
        if self.0.is_some() { LARGE } else { SMALL }
    }

    /// Bytes of the longest frame. Each is held until it is whole, and those other than DATA are not bounded by windows.
    pub(crate) fn frame(&self) -> u32 {
        if self.0.is_some() { LARGE } else { 16 << 10 }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.used.fetch_sub(LARGE.into(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_windows_are_large_and_come_back() {
        let windows = Windows::new(2 * u64::from(LARGE) + 1);
        let (first, second, third) = (windows.take(), windows.take(), windows.take());
        assert_eq!(
            (first.bytes(), second.bytes(), third.bytes()),
            (LARGE, LARGE, SMALL)
        );
        drop((third, first));
        assert_eq!(windows.take().bytes(), LARGE);
        drop(second);
        assert_eq!(windows.0.used.load(Ordering::Relaxed), 0);
    }
}
