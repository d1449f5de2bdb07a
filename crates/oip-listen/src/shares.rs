//! HTTP/2 receive windows from a memory budget shared by all connections.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The memory budget for receive windows, over all connections that share this budget.
///
/// Before the service reads, clients may send as much as the windows of their connection and streams allow.
/// The first connections get very large windows, for large tensors and long links. When the budget for these
/// windows is used up, the next connections get large windows, then medium ones, and all others get small
/// ones.
#[derive(Clone, Debug)]
pub struct Windows(Arc<SharedState>);

#[derive(Debug)]
struct SharedState {
    /// Budget for all windows of each size, in bytes.
    limit: u64,
    used: [AtomicU64; SIZES.len()],
}

/// Sizes of very large, large and medium windows in bytes. At a round-trip time of 1 ms a very large window
/// allows 1 GiB/s, a large one 256 MiB/s. A medium window is the minimum that HTTP/2 allows for a connection.
const SIZES: [u32; 3] = [1 << 20, LARGE, MEDIUM];
const LARGE: u32 = 256 << 10;
const MEDIUM: u32 = 65_535;
/// Size of a small window in bytes, per stream. At a round-trip time of 1 ms a small window allows 16 MiB/s.
const SMALL: u32 = 16 << 10;

impl Windows {
    /// Creates a budget of `bytes` bytes, one third for each size above the small one.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(SharedState {
            limit: bytes / SIZES.len() as u64,
            used: Default::default(),
        }))
    }

    /// Assigns a window to a new connection.
    pub(crate) fn take(&self) -> Window {
        let SharedState { limit, used } = &*self.0;
        let level = SIZES.iter().zip(used).position(|(size, used)| {
            let more = |used: u64| used.checked_add(u64::from(*size)).filter(|used| used <= limit);
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
                .is_ok()
        });
        Window {
            shared: self.0.clone(),
            level,
        }
    }
}

/// The window of a connection. Dropping the value returns the window to the budget.
#[derive(Debug)]
pub(crate) struct Window {
    shared: Arc<SharedState>,
    /// Index into [`SIZES`]; `None` for the small size.
    level: Option<usize>,
}

impl Window {
    /// Returns a stream's window in bytes.
    pub(crate) fn of_stream(&self) -> u32 {
        self.level.map_or(SMALL, |level| SIZES[level])
    }

    /// Returns the connection's window in bytes.
    pub(crate) fn of_connection(&self) -> u32 {
        self.of_stream().max(MEDIUM)
    }

    /// Returns the maximum frame size in bytes. A frame is buffered until complete, and frames other than
    /// DATA are not bounded by windows.
    pub(crate) fn frame(&self) -> u32 {
        if self.of_stream() >= LARGE {
            LARGE
        } else {
            16 << 10
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(level) = self.level {
            self.shared.used[level].fetch_sub(SIZES[level].into(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_windows_are_large_and_come_back() {
        let [very_large, large, medium] = SIZES;
        let windows = Windows::new(3 * (2 * u64::from(very_large) + 1));
        let counts = [2, 8, 32];
        let mut taken: Vec<_> = (0..2 + 8 + 32 + 1).map(|_| windows.take()).collect();
        let expected = SIZES
            .iter()
            .zip(counts)
            .flat_map(|(size, count)| vec![*size; count]);
        let expected: Vec<_> = expected.chain([SMALL]).collect();
        let sizes: Vec<_> = taken.iter().map(Window::of_stream).collect();
        assert_eq!(sizes, expected);
        let of_connection = |index: usize| taken[index].of_connection();
        assert_eq!(
            [0, 2, 10, 42].map(of_connection),
            [very_large, large, medium, MEDIUM]
        );
        let frame = |index: usize| taken[index].frame();
        assert_eq!([0, 2, 10, 42].map(frame), [LARGE, LARGE, 16 << 10, 16 << 10]);
        drop(taken.remove(1));
        assert_eq!(windows.take().of_stream(), very_large);
        drop(taken.remove(5));
        assert_eq!(taken.remove(0).of_stream(), very_large);
        drop(taken);
        assert!(
            windows
                .0
                .used
                .iter()
                .all(|used| used.load(Ordering::Relaxed) == 0)
        );
    }
}
