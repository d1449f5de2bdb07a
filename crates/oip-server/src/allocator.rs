//! Memory: the C library's allocator, told to give back what is freed, and a small shelf of large buffers before it.
//!
//! Left alone, the C library raises the size from which buffers are mapped by themselves with each one that is freed, up
//! to 32 MiB, and keeps smaller ones in up to eight arenas per processor. Then a server whose memory budget is all free
//! holds a multiple of it. Told not to, it asks the system for every large buffer anew, and a network's values between two
//! operators are such buffers: a third of the time of a run went into page faults. So [`Keeping`] keeps some of what is
//! freed, for the next of the same size, and for a few seconds only.
//!
//! Builds for debugging are without it: tests of the whole workspace link an allocator that counts, and there can be one.
#![cfg_attr(
    debug_assertions,
    allow(dead_code, reason = "it is the program's allocator in release builds only")
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::{Mutex, PoisonError, TryLockError},
    thread,
    time::Duration,
};

/// Buffers of these sizes are kept.
const LEAST: usize = 128 << 10;
const MOST: usize = 64 << 20;

/// The most that is kept, in bytes and in buffers.
const MAX_BYTES: usize = 64 << 20;
const MAX_BLOCKS: usize = 64;

/// How often what was not used is given back: a buffer stays for one to two of these.
const INTERVAL: Duration = Duration::from_secs(2);

#[cfg(not(debug_assertions))]
#[global_allocator]
static ALLOCATOR: Keeping = Keeping;

static SHELF: Mutex<Shelf> = Mutex::new(Shelf::new());

/// The system's allocator behind a shelf of large buffers.
struct Keeping;

impl Keeping {
    /// Takes a buffer from the shelf. Nobody waits: if another thread is at it, there is none.
    fn take(layout: Layout) -> Option<*mut u8> {
        let mut shelf = match SHELF.try_lock() {
            Ok(shelf) => shelf,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        shelf.take(layout)
    }

    /// Puts a buffer onto the shelf, if there is room.
    fn put(block: *mut u8, layout: Layout) -> bool {
        match SHELF.try_lock() {
            Ok(mut shelf) => shelf.put(block, layout),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().put(block, layout),
            Err(TryLockError::WouldBlock) => false,
        }
    }
}

/// The layout that buffers of about this size have on the shelf, `None` for those that are not kept. It is the same for
/// all layouts that it is returned for, and at least as large.
fn kept(layout: Layout) -> Option<Layout> {
    if !(LEAST..=MOST).contains(&layout.size()) {
        return None;
    }
    let step = layout.size().next_power_of_two() >> 4;
    let size = layout.size().checked_next_multiple_of(step)?;
    Layout::from_size_align(size, layout.align().max(16)).ok()
}

// SAFETY: all memory comes from `System` with the layout that `kept` gives for the caller's, or with the caller's own where
// that is none, and is given back with the same: `kept` depends on nothing but the layout, which callers repeat. What is on
// the shelf has no other owner: it is put there when its owner frees it, and leaves it when it gets the next.
#[allow(unsafe_code, reason = "an allocator can only be written so")]
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(layout) = kept(layout) else {
            // SAFETY: the caller's own promise.
            return unsafe { System.alloc(layout) };
        };
        if let Some(block) = Self::take(layout) {
            return block;
        }
        // SAFETY: the size is not 0.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() || give_back(0) == 0 {
            return block;
        }
        // SAFETY: as above; what was kept is free now.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(larger) = kept(layout) else {
            // SAFETY: the caller's own promise.
            return unsafe { System.alloc_zeroed(layout) };
        };
        if let Some(block) = Self::take(larger) {
            // SAFETY: the block has at least so many bytes.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
            return block;
        }
        // SAFETY: the size is not 0.
        unsafe { System.alloc_zeroed(larger) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match kept(layout) {
            Some(layout) if Self::put(block, layout) => {}
            // SAFETY: it was allocated with this layout.
            Some(layout) => unsafe { System.dealloc(block, layout) },
            // SAFETY: as above.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new_layout) = Layout::from_size_align(new_size, layout.align()) else {
            return ptr::null_mut();
        };
        match (kept(layout), kept(new_layout)) {
            (Some(old), Some(new)) if old == new => block,
            // SAFETY: it was allocated with the old layout, and both have the same alignment.
            (Some(old), Some(new)) => unsafe { System.realloc(block, old, new.size()) },
            // SAFETY: as above.
            (None, None) => unsafe { System.realloc(block, layout, new_size) },
            _ => {
                // SAFETY: the caller's own promise about the size.
                let new = unsafe { self.alloc(new_layout) };
                if !new.is_null() {
                    let length = layout.size().min(new_size);
                    // SAFETY: both have so many bytes, and the new one is nobody else's.
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

/// Freed buffers. It has a fixed size, for it cannot allocate.
struct Shelf {
    blocks: [Block; MAX_BLOCKS],
    count: usize,
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Block {
    address: *mut u8,
    layout: Layout,
    /// Intervals that have ended since it was freed.
    age: u32,
}

// SAFETY: the addresses are of memory that nothing else uses, wherever the shelf is looked at.
#[allow(unsafe_code, reason = "pointers are not `Send` by themselves")]
unsafe impl Send for Shelf {}

impl Shelf {
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

    /// The buffer of this layout that was freed last: it may still be in the processor's cache.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let index = self.blocks[..self.count]
            .iter()
            .rposition(|block| block.layout == layout)?;
        Some(self.remove(index).address)
    }

    fn put(&mut self, address: *mut u8, layout: Layout) -> bool {
        let has_room = self.count < MAX_BLOCKS && self.bytes + layout.size() <= MAX_BYTES;
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

    /// Takes one that is at least so old.
    fn take_old(&mut self, age: u32) -> Option<Block> {
        let index = self.blocks[..self.count]
            .iter()
            .position(|block| block.age >= age)?;
        Some(self.remove(index))
    }
}

/// Gives back what has been on the shelf for so many intervals; returns how many bytes that was.
fn give_back(age: u32) -> usize {
    let mut freed = 0;
    while let Some(block) = SHELF.lock().unwrap_or_else(PoisonError::into_inner).take_old(age) {
        freed += block.layout.size();
        // SAFETY: it was allocated with this layout, and nothing else has it.
        #[allow(unsafe_code, reason = "as for the allocator")]
        unsafe {
            System.dealloc(block.address, block.layout);
        }
    }
    freed
}

/// Lets a thread give back what is not used again. Without the thread, what is kept stays: it has a limit.
pub(crate) fn give_back_what_is_unused() {
    let clear = || {
        let mut untrimmed = 0;
        loop {
            thread::sleep(INTERVAL);
            give_back(1);
            let mut shelf = SHELF.lock().unwrap_or_else(PoisonError::into_inner);
            let count = shelf.count;
            shelf.blocks[..count].iter_mut().for_each(|block| block.age += 1);
            drop(shelf);
            untrimmed = trim(untrimmed);
        }
    };
    // What it would do is done by others when memory runs out.
    let _ = thread::Builder::new().name("memory".to_owned()).spawn(clear);
}

/// Free memory between buffers that are in use goes back to the system too, if it is much: the C library gives back only
/// what is free at the end of its arenas. A model that was unloaded leaves as much as its graph has taken.
///
/// What was given back still counts as free, so it is done again only when the count has changed: takes the count after
/// the last time and returns the one after this.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the C library's allocator has no other interface")]
fn trim(last: usize) -> usize {
    const MUCH: usize = 8 << 20;
    // SAFETY: reads counters.
    let free = unsafe { libc::mallinfo2() }.fordblks;
    if free.abs_diff(last) < MUCH {
        return last;
    }
    // SAFETY: takes a number; only memory that nobody uses is given back.
    unsafe { libc::malloc_trim(1 << 20) };
    free
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim(last: usize) -> usize {
    last
}

/// Tells the C library to give freed memory back to the system. To be called before there are threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(
    unsafe_code,
    reason = "the C library's allocator has no other interface; it is only given numbers"
)]
pub(crate) fn give_back_what_is_freed() {
    for (parameter, value) in [
        // Setting this also ends its raising.
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 1 << 20),
        (libc::M_ARENA_MAX, 2),
    ] {
        // SAFETY: takes two numbers; what it does not know it refuses.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back_what_is_freed() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_few_and_large_enough() {
        let mut layouts = std::collections::HashSet::new();
        for size in (LEAST..=MOST).step_by(4097) {
            let Some(layout) = Layout::from_size_align(size, 4).ok().and_then(kept) else {
                panic!("{size} is not kept");
            };
            assert!(layout.size() >= size && layout.size() <= size + size / 7);
            assert_eq!(kept(layout), Some(layout).filter(|layout| layout.size() <= MOST));
            layouts.insert(layout.size());
        }
        assert!(layouts.len() <= 90, "{}", layouts.len());
        assert!(kept(Layout::new::<[u8; 1000]>()).is_none());
    }

    #[test]
    fn the_shelf_has_an_end() {
        let mut shelf = Shelf::new();
        let layout = |size: usize| Layout::from_size_align(size, 16).unwrap_or(Layout::new::<u8>());
        let address = |number: usize| ptr::without_provenance_mut::<u8>(number);
        assert!(shelf.put(address(1), layout(1 << 20)) && shelf.put(address(2), layout(1 << 20)));
        assert_eq!(shelf.take(layout(2 << 20)), None);
        // The last that came goes first.
        assert_eq!(shelf.take(layout(1 << 20)), Some(address(2)));
        assert!(shelf.put(address(3), layout(MAX_BYTES - (1 << 20))));
        assert!(!shelf.put(address(4), layout(LEAST)));
        assert!(shelf.take_old(1).is_none());
        assert_eq!(std::iter::from_fn(|| shelf.take_old(0)).count(), 2);
        for number in 0..2 * MAX_BLOCKS {
            shelf.put(address(number + 10), layout(LEAST));
        }
        assert!(shelf.count == MAX_BLOCKS && shelf.bytes <= MAX_BYTES);
        let left = std::iter::from_fn(|| shelf.take_old(0)).count();
        assert_eq!((left, shelf.bytes), (MAX_BLOCKS, 0));
    }

    #[test]
    #[allow(unsafe_code, reason = "allocators are called so")]
    fn buffers_keep_what_is_in_them() {
        let run = |seed: u8| {
            for round in 0..30usize {
                let size = LEAST - 3 + round * 8111;
                let layout = |size: usize| Layout::from_size_align(size, 1).unwrap_or(Layout::new::<u8>());
                let is_all = |block: *const u8, size: usize, byte: u8| {
                    // SAFETY: blocks have been written as far as they are read.
                    let bytes = unsafe { std::slice::from_raw_parts(block, size) };
                    bytes.iter().all(|found| *found == byte)
                };
                // SAFETY: each block is used within its layout, and freed with the one that it has at last.
                unsafe {
                    let zeroed = Keeping.alloc_zeroed(layout(size));
                    assert!(is_all(zeroed, size, 0));
                    ptr::write_bytes(zeroed, 99, size);
                    let block = Keeping.alloc(layout(size));
                    ptr::write_bytes(block, seed, size);
                    Keeping.dealloc(zeroed, layout(size));
                    let block = Keeping.realloc(block, layout(size), 2 * size);
                    assert!(is_all(block, size, seed));
                    let block = Keeping.realloc(block, layout(2 * size), round + 1);
                    assert!(is_all(block, round + 1, seed));
                    Keeping.dealloc(block, layout(round + 1));
                }
            }
        };
        thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || run(seed));
            }
        });
        give_back(0);
    }
}
