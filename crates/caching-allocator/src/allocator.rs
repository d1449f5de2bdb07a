//! The allocator: mimalloc for small buffers, cached mappings for large ones.

use std::{
    alloc::{GlobalAlloc, Layout},
    ptr,
};

use mimalloc::MiMalloc;

use crate::{
    cache::{self, free_cached},
    layouts::{is_aligned_anyway, mapped},
    mappings,
};

/// mimalloc for small buffers, cached mappings for large ones; the [crate](crate) says why.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: caching_allocator::CachingAllocator = caching_allocator::CachingAllocator;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CachingAllocator;

/// Allocates small buffers without contention between threads.
static SMALL: MiMalloc = MiMalloc;

impl CachingAllocator {
    /// Maps memory. If the system is out of memory, empties the cache and retries.
    fn map(layout: Layout) -> *mut u8 {
        let block = mappings::map(layout);
        if !block.is_null() || free_cached(usize::MAX) == 0 {
            return block;
        }
        mappings::map(layout)
    }

    /// Resizes a mapped buffer, from layout `old` to `new`. A buffer that at least doubles moves to a cached
    /// one if possible: its bytes are copied faster than the system clears as many new pages.
    ///
    /// # Safety
    /// As for [`GlobalAlloc::realloc`]; both layouts come from [`mapped`].
    #[allow(unsafe_code, reason = "mapped buffers can only be handled so")]
    unsafe fn resize(block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
        if new.size() / 2 >= old.size()
            && let Some(larger) = cache::take(new)
        {
            // SAFETY: both blocks have at least this size, and nothing else refers to the larger one. The old
            // block was mapped with this layout.
            unsafe {
                ptr::copy_nonoverlapping(block, larger, old.size());
                Self::free(block, old);
            }
            return larger;
        }
        // SAFETY: the buffer was mapped with the old layout.
        unsafe { mappings::remap(block, old, new) }
    }

    /// Caches a mapped buffer, or returns it to the system.
    ///
    /// # Safety
    /// The block was mapped with this layout, and nothing else uses it.
    #[allow(unsafe_code, reason = "mapped buffers can only be handled so")]
    unsafe fn free(block: *mut u8, layout: Layout) {
        if !cache::put(block, layout) {
            // SAFETY: the caller upholds the contract.
            unsafe { mappings::unmap(block, layout) };
        }
    }
}

// SAFETY: a buffer is mapped with the layout that `mapped` returns for the caller's layout; if `mapped`
// returns `None`, mimalloc allocates the buffer with the caller's layout. The buffer is freed the same way:
// `mapped` depends only on the layout, and callers free with the layout of the allocation. Cached buffers
// have no other owner: they enter the cache when they are freed, and leave it when they are reused.
#[allow(unsafe_code, reason = "an allocator can only be written so")]
unsafe impl GlobalAlloc for CachingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(layout) = mapped(layout) else {
            if is_aligned_anyway(layout) {
                // SAFETY: any size is allowed, and the block has the required alignment.
                return unsafe { libmimalloc_sys::mi_malloc(layout.size()) }.cast();
            }
            // SAFETY: the caller upholds the contract.
            return unsafe { SMALL.alloc(layout) };
        };
        cache::take(layout).unwrap_or_else(|| Self::map(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(larger) = mapped(layout) else {
            // SAFETY: the caller upholds the contract.
            return unsafe { SMALL.alloc_zeroed(layout) };
        };
        if let Some(block) = cache::take(larger) {
            // SAFETY: the block has at least this size.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
            return block;
        }
        // The system returns zeroed pages.
        Self::map(larger)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match mapped(layout) {
            // SAFETY: the buffer was mapped with this layout.
            Some(layout) => unsafe { Self::free(block, layout) },
            // SAFETY: mimalloc allocated the buffer with this layout.
            None => unsafe { SMALL.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new_layout) = Layout::from_size_align(new_size, layout.align()) else {
            return ptr::null_mut();
        };
        match (mapped(layout), mapped(new_layout)) {
            (Some(old), Some(new)) if old == new => block,
            // SAFETY: the buffer was mapped with the old layout.
            (Some(old), Some(new)) => unsafe { Self::resize(block, old, new) },
            // SAFETY: mimalloc allocated the buffer with the old layout.
            (None, None) => unsafe { SMALL.realloc(block, layout, new_size) },
            _ => {
                // SAFETY: the caller guarantees that the size is valid.
                let new = unsafe { self.alloc(new_layout) };
                if !new.is_null() {
                    let length = layout.size().min(new_size);
                    // SAFETY: both blocks are at least this large, and nothing else refers to the new one.
                    unsafe {
                        ptr::copy_nonoverlapping(block, new, length);
                        self.dealloc(block, layout);
                    }
                }
                new
            }
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "allocators are called so")]
mod tests {
    use std::thread;

    use super::*;
    use crate::layouts::{LEAST_MAPPED, PAGE};

    #[test]
    fn buffers_begin_where_they_must() {
        let mut blocks = Vec::new();
        for align in (0..13).map(|power| 1 << power) {
            for size in (1..600).chain((600..LEAST_MAPPED + 3 * PAGE).step_by(7 * 128 + 8)) {
                let Ok(layout) = Layout::from_size_align(size, align) else {
                    panic!("{size} aligned to {align}");
                };
                // SAFETY: the block is freed once, below.
                let block = unsafe { CachingAllocator.alloc(layout) };
                assert!(
                    !block.is_null() && block.addr().is_multiple_of(align),
                    "{layout:?}"
                );
                blocks.push((block, layout));
            }
        }
        for (block, layout) in blocks {
            // SAFETY: the block was allocated with this layout.
            unsafe { CachingAllocator.dealloc(block, layout) };
        }
    }

    #[test]
    fn buffers_keep_what_is_in_them() {
        let run = |seed: u8| {
            for round in 0..30usize {
                let size = LEAST_MAPPED - 3 + round * 8111;
                let layout = |size: usize| Layout::from_size_align(size, 1).unwrap_or(Layout::new::<u8>());
                let is_all = |block: *const u8, size: usize, byte: u8| {
                    // SAFETY: these bytes were written before.
                    let bytes = unsafe { std::slice::from_raw_parts(block, size) };
                    bytes.iter().all(|found| *found == byte)
                };
                // SAFETY: each block is used within its layout, and freed with its final layout.
                unsafe {
                    let zeroed = CachingAllocator.alloc_zeroed(layout(size));
                    assert!(is_all(zeroed, size, 0));
                    ptr::write_bytes(zeroed, 99, size);
                    let block = CachingAllocator.alloc(layout(size));
                    ptr::write_bytes(block, seed, size);
                    CachingAllocator.dealloc(zeroed, layout(size));
                    let block = CachingAllocator.realloc(block, layout(size), 2 * size);
                    assert!(is_all(block, size, seed));
                    // The buffer may move into the cached one of the previous round.
                    let block = CachingAllocator.realloc(block, layout(2 * size), 8 * size);
                    assert!(is_all(block, size, seed));
                    let block = CachingAllocator.realloc(block, layout(8 * size), round + 1);
                    assert!(is_all(block, round + 1, seed));
                    CachingAllocator.dealloc(block, layout(round + 1));
                }
            }
        };
        thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || run(seed));
            }
        });
        free_cached(usize::MAX);
    }
}
