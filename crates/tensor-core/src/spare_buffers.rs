//! Reuses large buffers: their memory is already mapped, while the system would have to clear fresh pages.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

/// A pool of used buffers with a maximum total size. A pooled buffer is reused for a request of about the
/// same size.
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
    /// A copy of `kept.bytes` that is readable without the lock.
    bytes: AtomicU64,
    kept: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// Keyed by capacity, then by age.
    buffers: BTreeMap<(usize, u64), Vec<u8>>,
    bytes: u64,
    arrivals: u64,
    /// The lowest total size in bytes since the last [`SpareBuffers::trim`]: buffers of this total size were
    /// never taken.
    lowest: u64,
}

impl SpareBuffers {
    /// Minimum size of a pooled buffer in bytes. Smaller buffers are cheap to allocate.
    pub const LEAST_KEPT: usize = 64 << 10;

    /// Creates a pool of at most `most` bytes.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self {
            most,
            bytes: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    /// Returns the total size of the pooled buffers in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes a buffer from the pool that has at least `capacity` bytes, and at most a quarter more. The
    /// buffer still has its old contents.
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

    /// Adds `buffer` to the pool, and frees the largest pooled buffers to make room. A buffer smaller than
    /// [`SpareBuffers::LEAST_KEPT`] or larger than the pool is freed instead.
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
        // Freeing memory takes time, so it happens outside the lock.
        drop(excess);
    }

    /// Returns the first `len` bytes of a buffer. When the last slice of these bytes is dropped, the buffer
    /// returns to the pool, if the pool still exists.
    ///
    /// # Panics
    /// When the buffer has fewer than `len` bytes.
    #[must_use]
    pub fn lend(self: &Arc<Self>, buffer: Vec<u8>, len: usize) -> Bytes {
        let found = buffer.len();
        assert!(
            len <= found,
            "expected a buffer of at least {len} bytes, found {found}"
        );
        Bytes::from_owner(LentBuffer {
            buffer,
            len,
            home: Arc::downgrade(self),
        })
    }

    /// Frees pooled buffers until at least `bytes` bytes are freed or the pool is empty.
    pub fn free(&self, bytes: u64) {
        let mut freed = Vec::new();
        let mut kept = self.lock();
        kept.remove_largest(bytes, &mut freed);
        self.count(&mut kept);
        drop(kept);
        drop(freed);
    }

    /// Frees the pooled memory that was not needed since the last call of `trim`.
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

    /// Updates the copy of the pool's size and its lowest size.
    fn count(&self, kept: &mut Pool) {
        self.bytes.store(kept.bytes, Ordering::Relaxed);
        kept.lowest = kept.lowest.min(kept.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        // Every critical section leaves the state consistent, so a poisoned lock is usable.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that returns to the pool on drop.
struct LentBuffer {
    buffer: Vec<u8>,
    len: usize,
    home: Weak<SpareBuffers>,
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.put(std::mem::take(&mut self.buffer));
        }
    }
}

impl Pool {
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
        // The largest buffer was freed to make room.
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
        // At most three of the four buffers are in use at the same time, so one buffer is not needed.
        let used: Vec<_> = (0..3).map(|_| spare.take(100 * KIB).unwrap()).collect();
        used.into_iter().for_each(|buffer| spare.put(buffer));
        spare.trim();
        assert_eq!(spare.bytes(), 300 << 10);
        spare.trim();
        assert_eq!(spare.bytes(), 0);
    }
}
