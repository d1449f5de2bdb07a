//! The cache of freed buffers, and its limit.

use std::{
    alloc::Layout,
    ptr,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{layouts::LARGEST_CACHED, mappings};

/// Maximum number of cached buffers.
const MAX_BLOCKS: usize = 192;

/// Maximum size of the cache in bytes, unless the program sets a limit. The size suffices for the intermediate
/// tensors of one run of a vision network.
const DEFAULT_LIMIT: usize = 128 << 20;

/// The limit that the program set.
static LIMIT: OnceLock<fn() -> usize> = OnceLock::new();

/// The size of the cache in bytes, readable without the lock.
static CACHED_BYTES: AtomicUsize = AtomicUsize::new(0);

static CACHE: Mutex<Cache> = Mutex::new(Cache::new());

/// Sets the maximum size of the cache in bytes, in place of 128 MiB. The function is called whenever a large
/// buffer is freed, so the limit may change; it must not allocate. If it panics, the program ends. Later calls
/// have no effect.
pub fn set_cache_limit(limit: fn() -> usize) {
    let _ = LIMIT.set(limit);
}

/// Returns the maximum size of the cache in bytes. A panic must not unwind out of an allocator, and does not
/// leave a function of C's calling convention.
extern "C" fn current_limit() -> usize {
    LIMIT.get().map_or(DEFAULT_LIMIT, |limit| limit())
}

/// Returns the size of the cache in bytes.
#[must_use]
pub fn cached_bytes() -> usize {
    CACHED_BYTES.load(Ordering::Relaxed)
}

/// Returns cached buffers to the system, the oldest first, until at least `bytes` bytes are free or the cache
/// is empty. Returns the number of bytes freed.
pub fn free_cached(bytes: usize) -> usize {
    free_while(|freed| freed < bytes, 0)
}

/// Returns buffers that are at least `age` intervals old to the system.
pub(crate) fn free_old(age: u32) {
    free_while(|_| true, age);
}

/// Makes all cached buffers one interval older.
pub(crate) fn make_older() {
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = cache.count;
    cache.blocks[..count].iter_mut().for_each(|block| block.age += 1);
}

/// Frees buffers that are at least `age` intervals old while `goes_on` returns true, given the number of bytes
/// freed so far. Returns that number at the end.
fn free_while(goes_on: impl Fn(usize) -> bool, age: u32) -> usize {
    let mut freed = 0;
    while goes_on(freed) {
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(oldest) = cache.take_old(age) else {
            break;
        };
        note_size(&cache);
        // The buffer is unmapped after the lock is released.
        drop(cache);
        freed += oldest.layout.size();
        oldest.unmap();
    }
    freed
}

/// Takes a buffer from the cache. Never waits: if another thread holds the lock, returns `None`.
pub(crate) fn take(layout: Layout) -> Option<*mut u8> {
    if layout.size() > cached_bytes() {
        return None;
    }
    let mut cache = try_lock()?;
    let block = cache.take(layout);
    note_size(&cache);
    block
}

/// Adds a freed buffer to the cache, and evicts the oldest buffers if needed. Returns whether the buffer was
/// added. Never waits for the lock.
///
/// `layout` is the one with which the buffer was mapped, and nothing else refers to it.
pub(crate) fn put(block: *mut u8, layout: Layout) -> bool {
    let limit = current_limit();
    if layout.size() > LARGEST_CACHED.min(limit) {
        return false;
    }
    loop {
        let Some(mut cache) = try_lock() else {
            return false;
        };
        let is_cached = cache.put(block, layout, limit);
        let evicted = if is_cached { None } else { cache.take_old(0) };
        note_size(&cache);
        drop(cache);
        match evicted {
            None => return is_cached,
            Some(oldest) => oldest.unmap(),
        }
    }
}

/// Copies the size of the cache to where it is read without the lock.
fn note_size(cache: &Cache) {
    CACHED_BYTES.store(cache.bytes, Ordering::Relaxed);
}

fn try_lock() -> Option<MutexGuard<'static, Cache>> {
    match CACHE.try_lock() {
        Ok(cache) => Some(cache),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Freed buffers. The struct has a fixed size, because the allocator itself cannot allocate.
struct Cache {
    blocks: [Block; MAX_BLOCKS],
    count: usize,
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Block {
    address: *mut u8,
    layout: Layout,
    /// Number of intervals since the buffer was freed.
    age: u32,
}

impl Block {
    /// Returns the buffer to the system.
    fn unmap(self) {
        // SAFETY: `put` receives only mapped buffers that nothing else refers to, and this block has left the
        // cache.
        #[allow(unsafe_code, reason = "as for the allocator")]
        unsafe {
            mappings::unmap(self.address, self.layout);
        }
    }
}

// SAFETY: nothing else uses the memory at the addresses, whichever thread accesses the cache.
#[allow(unsafe_code, reason = "pointers are not `Send` by themselves")]
unsafe impl Send for Cache {}

impl Cache {
    const fn new() -> Self {
        Self {
            blocks: [Block {
                address: ptr::null_mut(),
                layout: Layout::new::<u8>(),
                age: 0,
            }; MAX_BLOCKS],
            count: 0,
            bytes: 0,
        }
    }

    /// Takes the most recently freed buffer of this layout, which may still be in the CPU's cache.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let index = self.blocks[..self.count]
            .iter()
            .rposition(|block| block.layout == layout)?;
        Some(self.remove(index).address)
    }

    /// Adds a buffer, unless the cache would exceed `limit` bytes or its number of buffers.
    fn put(&mut self, address: *mut u8, layout: Layout, limit: usize) -> bool {
        let has_room = self.count < MAX_BLOCKS && self.bytes + layout.size() <= limit;
        if has_room {
            self.blocks[self.count] = Block {
                address,
                layout,
                age: 0,
            };
            self.count += 1;
            self.bytes += layout.size();
        }
        has_room
    }

    fn remove(&mut self, index: usize) -> Block {
        let block = self.blocks[index];
        self.blocks.copy_within(index + 1..self.count, index);
        self.count -= 1;
        self.bytes -= block.layout.size();
        block
    }

    /// Takes the oldest buffer that is at least `age` intervals old.
    fn take_old(&mut self, age: u32) -> Option<Block> {
        let index = self.blocks[..self.count]
            .iter()
            .position(|block| block.age >= age)?;
        Some(self.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::LEAST_MAPPED;

    #[test]
    fn the_cache_has_an_end() {
        const LIMIT: usize = 32 << 20;
        let mut cache = Cache::new();
        let layout = |size: usize| Layout::from_size_align(size, 16).unwrap_or(Layout::new::<u8>());
        let address = |number: usize| ptr::without_provenance_mut::<u8>(number);
        let put = |cache: &mut Cache, number, size| cache.put(address(number), layout(size), LIMIT);
        assert!(put(&mut cache, 1, 1 << 20) && put(&mut cache, 2, 1 << 20));
        assert_eq!(cache.take(layout(2 << 20)), None);
        // The most recently freed buffer is reused first.
        assert_eq!(cache.take(layout(1 << 20)), Some(address(2)));
        assert!(put(&mut cache, 3, LIMIT - (1 << 20)));
        assert!(!put(&mut cache, 4, LEAST_MAPPED));
        // The limit may grow.
        assert!(cache.put(address(5), layout(LEAST_MAPPED), 2 * LIMIT));
        assert_eq!(cache.take(layout(LEAST_MAPPED)), Some(address(5)));
        assert!(cache.take_old(1).is_none());
        assert_eq!(std::iter::from_fn(|| cache.take_old(0)).count(), 2);
        for number in 0..2 * MAX_BLOCKS {
            put(&mut cache, number + 10, LEAST_MAPPED);
        }
        assert!(cache.count == MAX_BLOCKS && cache.bytes <= LIMIT);
        let left = std::iter::from_fn(|| cache.take_old(0)).count();
        assert_eq!((left, cache.bytes), (MAX_BLOCKS, 0));
    }
}
