//! A limit that all connections of HTTP/2 share: bytes that are received before they are read.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes of memory for windows, over all connections that share it.
///
/// Clients send as much as the windows of their connection and streams allow before the service reads it. The first connections have
/// very large windows, for large tensors and links that are long. When the memory for those is given away the next ones have large
/// windows, then medium ones, and all others small ones.
#[derive(Clone, Debug)]
pub struct Windows(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Bytes for all windows of each of the sizes.
    limit: u64,
    used: [AtomicU64; SIZES.len()],
}

/// Bytes of a window that is very large, large or medium. A connection whose way there and back takes 1 ms carries 1 GiB/s with the first,
/// 256 MiB/s with the second. The third is the least that HTTP/2 allows for a connection.
const SIZES: [u32; 3] = [1 << 20, LARGE, MEDIUM];
const LARGE: u32 = 256 << 10;
const MEDIUM: u32 = 65_535;
/// Bytes of a small window, of each stream of a connection. It carries 16 MiB/s where the way there and back takes 1 ms.
const SMALL: u32 = 16 << 10;

impl Windows {
    /// So many bytes, a third of them for the windows of each size above the small one.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Shared {
            limit: bytes / SIZES.len() as u64,
            used: Default::default(),
        }))
    }

    /// The window of a new connection.
    pub(crate) fn take(&self) -> Window {
        let Shared { limit, used } = &*self.0;
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

/// The window of a connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Window {
    shared: Arc<Shared>,
    /// Which of the sizes it has; `None` for the small one.
    level: Option<usize>,
}

impl Window {
    /// Bytes that each stream may send before they are read.
    pub(crate) fn of_stream(&self) -> u32 {
        self.level.map_or(SMALL, |level| SIZES[level])
    }

    /// Bytes that all streams together may send before they are read.
    pub(crate) fn of_connection(&self) -> u32 {
        self.of_stream().max(MEDIUM)
    }

    /// Bytes of the longest frame. Each is held until it is whole, and those other than DATA are not bounded by windows.
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
