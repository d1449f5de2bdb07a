//! Buffers that were used and can be used again: warm memory, where the system would give fresh pages that it has to clear.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

/// Buffers that were used, up to a number of bytes, for those that need some of about the same size.
///
/// ```
/// use std::sync::Arc;
/// use tensor_core::SpareBuffers;
///
/// let spare = Arc::new(SpareBuffers::new(1 << 20));
/// let bytes = spare.lend(vec![1; 100 << 10], 99 << 10);
/// assert_eq!(bytes.len(), 99 << 10);
/// assert!(spare.take(90 << 10).is_none());
/// drop(bytes);
/// let again = spare.take(90 << 10).unwrap();
/// assert_eq!(again.len(), 100 << 10);
/// ```
#[derive(Debug)]
pub struct SpareBuffers {
    most: u64,
    /// What `kept.bytes` is, to be read without the lock.
    bytes: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By capacity, then in the order in which they came.
    buffers: BTreeMap<(usize, u64), Vec<u8>>,
    bytes: u64,
    arrivals: u64,
    /// The fewest bytes that were kept since the last [`SpareBuffers::trim`]: so many were not needed.
    lowest: u64,
}

impl SpareBuffers {
    /// Bytes from which a buffer is kept. Smaller ones are cheap to allocate.
    pub const LEAST_KEPT: usize = 64 << 10;

    /// Keeps at most so many bytes.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self {
            most,
            bytes: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    /// Bytes of all buffers that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A buffer with at least this capacity, and at most a quarter more. It has the contents with which it came.
    #[must_use]
    pub fn take(&self, capacity: usize) -> Option<Vec<u8>> {
        if capacity < Self::LEAST_KEPT || self.bytes() == 0 {
            return None;
        }
        let mut kept = self.lock();
        let (&key, _) = kept
            .buffers
            .range((capacity, 0)..=(capacity.saturating_add(capacity / 4), u64::MAX))
            .next()?;
        let buffer = kept.buffers.remove(&key)?;
        kept.bytes -= buffer.capacity() as u64;
        self.count(&mut kept);
        Some(buffer)
    }

    /// Keeps a buffer, if it is large enough and there is room for it.
    pub fn put(&self, buffer: Vec<u8>) {
        let bytes = buffer.capacity() as u64;
        if buffer.capacity() < Self::LEAST_KEPT || bytes > self.most {
            return;
        }
        let mut kept = self.lock();
        let mut excess = Vec::new();
        let beyond = (kept.bytes + bytes).saturating_sub(self.most);
        kept.remove_largest(beyond, &mut excess);
        kept.arrivals += 1;
        kept.bytes += bytes;
        let key = (buffer.capacity(), kept.arrivals);
        kept.buffers.insert(key, buffer);
        self.count(&mut kept);
        drop(kept);
        // Freeing takes a while, so it is done without the lock.
        drop(excess);
    }

    /// The first `len` bytes of a buffer. It is kept once their last slice is dropped, if the [`SpareBuffers`] still exist then.
    ///
    /// # Panics
    /// When the buffer has fewer bytes.
    #[must_use]
    pub fn lend(self: &Arc<Self>, buffer: Vec<u8>, len: usize) -> Bytes {
        let found = buffer.len();
        assert!(
            len <= found,
            "expected a buffer of at least {len} bytes, found {found}"
        );
        Bytes::from_owner(Lent {
            buffer,
            len,
            home: Arc::downgrade(self),
        })
    }

    /// Frees at least so many bytes, or all.
    pub fn free(&self, bytes: u64) {
        let mut freed = Vec::new();
        let mut kept = self.lock();
        kept.remove_largest(bytes, &mut freed);
        self.count(&mut kept);
        drop(kept);
        drop(freed);
    }

    /// Frees as much as has lain unused since the last call.
    pub fn trim(&self) {
        let mut freed = Vec::new();
        let mut kept = self.lock();
        let unused = kept.lowest;
        kept.remove_largest(unused, &mut freed);
        self.count(&mut kept);
        kept.lowest = kept.bytes;
        drop(kept);
        drop(freed);
    }

    /// Notes what is kept now.
    fn count(&self, kept: &mut Kept) {
        self.bytes.store(kept.bytes, Ordering::Relaxed);
        kept.lowest = kept.lowest.min(kept.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Updates are atomic, so lock poisoning is ignored.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that comes back.
struct Lent {
    buffer: Vec<u8>,
    len: usize,
    home: Weak<SpareBuffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.put(std::mem::take(&mut self.buffer));
        }
    }
}

impl Kept {
    fn remove_largest(&mut self, bytes: u64, removed: &mut Vec<Vec<u8>>) {
        let mut sum = 0;
        while sum < bytes
            && let Some((_, buffer)) = self.buffers.pop_last()
        {
            sum += buffer.capacity() as u64;
            removed.push(buffer);
        }
        self.bytes -= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn a_buffer_of_about_the_size_comes_again() {
        let spare = SpareBuffers::new(1 << 20);
        let buffer = vec![7; 100 * KIB];
        let address = buffer.as_ptr();
        spare.put(buffer);
        spare.put(Vec::with_capacity(60 * KIB)); // too small to be kept
        assert_eq!(spare.bytes(), 100 << 10);
        assert!(spare.take(70 * KIB).is_none(), "much too large");
        assert!(spare.take(101 * KIB).is_none(), "too small");
        let again = spare.take(90 * KIB).unwrap();
        assert_eq!((again.as_ptr(), again), (address, vec![7; 100 * KIB]));
        assert_eq!(spare.bytes(), 0);
    }

    #[test]
    fn a_lent_buffer_comes_back_with_its_last_slice() {
        let spare = Arc::new(SpareBuffers::new(1 << 20));
        let bytes = spare.lend(vec![7; 100 * KIB], 90 * KIB);
        let slice = bytes.slice(1..3);
        drop(bytes);
        assert_eq!((&slice[..], spare.bytes()), (&[7, 7][..], 0));
        drop(slice);
        assert_eq!(spare.bytes(), 100 << 10);
        let outlives = spare.lend(spare.take(100 * KIB).unwrap(), 0);
        drop(spare);
        assert!(outlives.is_empty());
    }

    #[test]
    fn no_more_than_the_most_is_kept() {
        let spare = SpareBuffers::new(300 << 10);
        for size in [100, 200, 64, 100] {
            spare.put(Vec::with_capacity(size * KIB));
            assert!(spare.bytes() <= 300 << 10);
        }
        // The largest one made room.
        assert_eq!(spare.bytes(), 264 << 10);
        spare.put(Vec::with_capacity(301 * KIB));
        assert_eq!(spare.bytes(), 264 << 10);
        spare.free(1);
        assert_eq!(spare.bytes(), 164 << 10);
        spare.free(u64::MAX);
        assert_eq!(spare.bytes(), 0);
    }

    #[test]
    fn what_lay_unused_between_two_trims_is_freed() {
        let spare = SpareBuffers::new(1 << 20);
        for _ in 0..4 {
            spare.put(Vec::with_capacity(100 * KIB));
        }
        spare.trim();
        assert_eq!(spare.bytes(), 400 << 10, "they have just come");
        // Three are in use at the same time, one is not needed.
        let used: Vec<_> = (0..3).map(|_| spare.take(100 * KIB).unwrap()).collect();
        used.into_iter().for_each(|buffer| spare.put(buffer));
        spare.trim();
        assert_eq!(spare.bytes(), 300 << 10);
        spare.trim();
        assert_eq!(spare.bytes(), 0);
    }
}
