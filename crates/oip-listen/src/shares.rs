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

/// Bytes of memory for windows, over all connections that share it.
///
/// Clients send as much as the windows of their connection and streams allow before the service reads it. The first connections have
/// large windows, for speed on links that are long; those that come when half of the memory is given away have medium ones,
/// and when all of it is, small ones.
#[derive(Clone, Debug)]
pub struct Windows(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Bytes for all windows of each of both sizes.
    limit: u64,
    large: AtomicU64,
    medium: AtomicU64,
}

/// Bytes of a large window. A connection whose way there and back takes 1 ms carries 256 MiB/s with it.
const LARGE: u32 = 1 << 20;
/// Bytes of a medium window, the least that HTTP/2 allows for a connection.
const MEDIUM: u32 = 65_535;
/// Bytes of a small window, of each stream of a connection. It carries 16 MiB/s where the way there and back takes 1 ms.
const SMALL: u32 = 16 << 10;

impl Windows {
    /// So many bytes, half of them for large windows and half for medium ones.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Shared {
            limit: bytes / 2,
            large: AtomicU64::new(0),
            medium: AtomicU64::new(0),
        }))
    }

    /// The window of a new connection.
    pub(crate) fn take(&self) -> Window {
        let Shared { limit, large, medium } = &*self.0;
        let fits = |used: &AtomicU64, bytes: u32| {
            let more = |used: u64| used.checked_add(bytes.into()).filter(|used| used <= limit);
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
                .is_ok()
        };
        let size = if fits(large, LARGE) {
            LARGE
        } else if fits(medium, MEDIUM) {
            MEDIUM
        } else {
            SMALL
        };
        Window {
            shared: self.0.clone(),
            size,
        }
    }
}

/// The window of a connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Window {
    shared: Arc<Shared>,
    size: u32,
}

impl Window {
    /// Bytes that each stream may send before they are read.
    pub(crate) fn of_stream(&self) -> u32 {
        self.size
    }

    /// Bytes that all streams together may send before they are read.
    pub(crate) fn of_connection(&self) -> u32 {
        self.size.max(MEDIUM)
    }

    /// Bytes of the longest frame. Each is held until it is whole, and those other than DATA are not bounded by windows.
    pub(crate) fn frame(&self) -> u32 {
        if self.size == LARGE { LARGE } else { 16 << 10 }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let used = match self.size {
            LARGE => &self.shared.large,
            MEDIUM => &self.shared.medium,
            _ => return,
        };
        used.fetch_sub(self.size.into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_windows_are_large_and_come_back() {
        let windows = Windows::new(2 * (2 * u64::from(LARGE) + 1));
        let mut taken: Vec<_> = (0..2 + 8 + 1).map(|_| windows.take()).collect();
        let sizes: Vec<_> = taken.iter().map(Window::of_stream).collect();
        assert_eq!(sizes[..2], [LARGE; 2]);
        assert_eq!(sizes[2..10], [MEDIUM; 8]);
        assert_eq!((sizes[10], taken[10].of_connection()), (SMALL, MEDIUM));
        drop(taken.remove(1));
        assert_eq!(windows.take().of_stream(), LARGE);
        drop(taken.remove(5));
        assert_eq!(taken.remove(0).of_stream(), LARGE);
        drop(taken);
        let Shared { large, medium, .. } = &*windows.0;
        assert_eq!(
            (large.load(Ordering::Relaxed), medium.load(Ordering::Relaxed)),
            (0, 0)
        );
    }
}
