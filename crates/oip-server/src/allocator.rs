//! Memory: mimalloc for small buffers; large ones are mapped by themselves, and some of them are kept for a while on a shelf.
//!
//! In the C library's allocator threads share arenas, each with a lock. A thread that wants ten bytes to answer that the
//! server lives then waits for one of low priority that has the lock and no processor, or that lets the arena grow while
//! others change the process's mappings: tens of milliseconds under attack. In mimalloc each thread has a heap of its own.
//! Large buffers would stay in those heaps, a gigabyte under attack. So they are mapped by themselves and go back to the system
//! at once. But a network's values between two operators are such buffers, and a third of the time of a run went into page
//! faults. So [`Keeping`] keeps some of what is freed, for the next of the same size, and for a few seconds only; what is there the
//! longest makes room. And buffers of megabytes that models take are asked for in huge pages, of which one fault maps 512 times as much.
//! What requests take is not, small or large: of a page that is touched once the system clears 2 MiB, of which the memory budget knows
//! nothing. mimalloc asks for such pages unless it is built without that (its feature `no_thp`), and under attack half of the work of the thread that
//! answers signs of life was to clear them.
//!
//! Builds for debugging are without it: tests of the whole workspace link an allocator that counts, and there can be one.
#![cfg_attr(
    debug_assertions,
    allow(dead_code, reason = "it is the program's allocator in release builds only")
)]

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use mimalloc::MiMalloc;
use oip_service::ByteBudget;

/// Buffers from this size on are mapped by themselves.
const LEAST: usize = 128 << 10;
/// Those up to this size are kept.
const MOST: usize = 32 << 20;
/// Where a page begins on any machine.
const PAGE: usize = 4 << 10;

/// The most that is kept, in bytes and in buffers.
const MAX_BYTES: usize = 32 << 20;
const MAX_BLOCKS: usize = 192;
/// The most bytes where a model has freed them and requests take little memory: the values of one run of a network for images, which
/// have many sizes.
const MAX_BYTES_OF_MODELS: usize = 128 << 20;
/// Requests take little memory where they have at most this part of the budget.
const LITTLE: u64 = 8;

/// How often what was not used is given back: a buffer stays for one to two of these.
const INTERVAL: Duration = Duration::from_secs(2);

#[cfg(all(not(debug_assertions), not(feature = "count-allocations")))]
#[global_allocator]
static ALLOCATOR: Keeping = Keeping;

#[cfg(all(not(debug_assertions), feature = "count-allocations"))]
#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Counts what is allocated, to measure what a request takes; it is in no program that serves.
#[cfg(feature = "count-allocations")]
pub(crate) mod counting {
    use std::{
        alloc::{GlobalAlloc, Layout},
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::Keeping;

    static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
    static BYTES: AtomicU64 = AtomicU64::new(0);

    /// How many allocations there were since the start, and of how many bytes together. One that is made larger counts once more.
    pub(crate) fn counted() -> (u64, u64) {
        (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
    }

    fn count(bytes: usize) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The server's allocator, which it asks for everything.
    pub(super) struct Counting;

    // SAFETY: all is `Keeping`'s.
    #[allow(unsafe_code, reason = "an allocator can only be written so")]
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size());
            // SAFETY: the caller's own promise.
            unsafe { Keeping.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            count(layout.size());
            // SAFETY: the caller's own promise.
            unsafe { Keeping.alloc_zeroed(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the caller's own promise.
            unsafe { Keeping.dealloc(block, layout) }
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
            count(new_size);
            // SAFETY: the caller's own promise.
            unsafe { Keeping.realloc(block, layout, new_size) }
        }
    }
}

thread_local! {
    /// Whether this thread loads or runs models. It has no destructor, so that the allocator may look at it at any time.
    static IS_MODELS: Cell<bool> = const { Cell::new(false) };
}

/// Says that what this thread allocates from now on is for models.
pub(crate) fn note_model_thread() {
    IS_MODELS.set(true);
}

/// Whether this process has nothing but a model.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// Says that all that this process allocates from now on is for a model.
pub(crate) fn note_worker() {
    IS_WORKER.store(true, Ordering::Relaxed);
}

/// The memory of requests.
static BUDGET: OnceLock<ByteBudget> = OnceLock::new();

/// Says which budget the memory of requests is charged to. The first one counts.
pub(crate) fn note_budget(budget: ByteBudget) {
    let _ = BUDGET.set(budget);
}

/// Whether requests take so much memory that little should be kept.
fn is_short(budget: &ByteBudget) -> bool {
    budget.used() > budget.limit() / LITTLE
}

/// The most bytes to keep, after a model's thread or another one has freed a buffer.
fn most(is_models: bool, is_short: bool) -> usize {
    match is_models && !is_short {
        true => MAX_BYTES_OF_MODELS,
        false => MAX_BYTES,
    }
}

/// Whether what this thread allocates is for models.
fn is_for_models() -> bool {
    IS_MODELS.get() || IS_WORKER.load(Ordering::Relaxed)
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf::new());

/// mimalloc for small buffers, and mappings behind a shelf for large ones.
struct Keeping;

/// Small buffers: no thread waits for another.
static SMALL: MiMalloc = MiMalloc;

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

    /// Takes memory from the system, for which all that is kept is given back if it must be.
    fn map(layout: Layout) -> *mut u8 {
        let block = pages::map(layout);
        if !block.is_null() || give_back(0) == 0 {
            return block;
        }
        pages::map(layout)
    }

    /// Puts a buffer onto the shelf, in the place of those that have been there the longest.
    fn put(block: *mut u8, layout: Layout) -> bool {
        let is_short = BUDGET.get().is_some_and(is_short);
        let most = most(is_for_models(), is_short);
        loop {
            let mut shelf = match SHELF.try_lock() {
                Ok(shelf) => shelf,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            };
            if shelf.put(block, layout, most) {
                return true;
            }
            // A model's buffers make no room for those of requests, unless there should be fewer of both.
            if layout.size() > MOST || (shelf.bytes > most && !is_short) {
                return false;
            }
            let Some(oldest) = shelf.take_old(0) else {
                return false;
            };
            // Others need not wait for the system.
            drop(shelf);
            // SAFETY: it was mapped with this layout, and nothing else has it.
            #[allow(unsafe_code, reason = "as for the allocator")]
            unsafe {
                pages::unmap(oldest.address, oldest.layout);
            }
        }
    }
}

/// The layout that buffers of about this size are mapped with, `None` for those that are not mapped by themselves. It is the
/// same for all layouts that it is returned for, and at least as large.
fn mapped(layout: Layout) -> Option<Layout> {
    if layout.size() < LEAST || layout.align() > PAGE {
        return None;
    }
    let step = match layout.size() {
        ..=MOST => layout.size().next_power_of_two() >> 4,
        _ => MOST >> 4,
    };
    let size = layout.size().checked_next_multiple_of(step)?;
    Layout::from_size_align(size, PAGE).ok()
}

/// Whether mimalloc gives a block of this layout without being told its alignment, which takes half of the work: its blocks begin
/// at multiples of 16 bytes, those of less than 16 bytes at multiples of 8.
fn is_aligned_anyway(layout: Layout) -> bool {
    layout.align() <= 8 || (layout.align() == 16 && layout.size() >= 16)
}

// SAFETY: memory is mapped, or comes from mimalloc, with the layout that `mapped` gives for the caller's, or with the caller's
// own where `mapped` gives none, and is given back the same way: `mapped` depends on nothing but the layout, which callers repeat. What
// is on the shelf has no other owner: it is put there when its owner frees it, and leaves it when it gets the next.
#[allow(unsafe_code, reason = "an allocator can only be written so")]
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(layout) = mapped(layout) else {
            if is_aligned_anyway(layout) {
                // SAFETY: any size is allowed, and the block has the alignment that is asked for.
                return unsafe { libmimalloc_sys::mi_malloc(layout.size()) }.cast();
            }
            // SAFETY: the caller's own promise.
            return unsafe { SMALL.alloc(layout) };
        };
        Self::take(layout).unwrap_or_else(|| Self::map(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(larger) = mapped(layout) else {
            // SAFETY: the caller's own promise.
            return unsafe { SMALL.alloc_zeroed(layout) };
        };
        if let Some(block) = Self::take(larger) {
            // SAFETY: the block has at least so many bytes.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
            return block;
        }
        // The system maps zeros.
        Self::map(larger)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match mapped(layout) {
            Some(layout) if Self::put(block, layout) => {}
            // SAFETY: it was mapped with this layout.
            Some(layout) => unsafe { pages::unmap(block, layout) },
            // SAFETY: as above.
            None => unsafe { SMALL.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new_layout) = Layout::from_size_align(new_size, layout.align()) else {
            return ptr::null_mut();
        };
        match (mapped(layout), mapped(new_layout)) {
            (Some(old), Some(new)) if old == new => block,
            // SAFETY: it was mapped with the old layout.
            (Some(old), Some(new)) => unsafe { pages::remap(block, old, new) },
            // SAFETY: as above.
            (None, None) => unsafe { SMALL.realloc(block, layout, new_size) },
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

/// Memory from the system itself, a whole number of pages each.
///
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "memory is mapped so")]
mod pages {
    use std::{alloc::Layout, ptr};

    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

    /// Zeros, or a null pointer.
    pub(super) fn map(layout: Layout) -> *mut u8 {
        // SAFETY: new memory, at no place of ours.
        let mapped = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                layout.size(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let Ok(block) = mapped else {
            return ptr::null_mut();
        };
        if layout.size() >= HUGE_PAGE && super::is_for_models() {
            // SAFETY: of what was just mapped, and its contents stay.
            let _ = unsafe { madvise(block, layout.size(), Advice::LinuxHugepage) };
        }
        block.cast()
    }

    /// From this size on the system can back a mapping with pages of this size.
    const HUGE_PAGE: usize = 2 << 20;

    /// Moves to a place of another size, or returns a null pointer and leaves it as it is.
    pub(super) unsafe fn remap(block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
        // SAFETY: the caller's promise that it was mapped with the old layout and that nobody else uses it.
        let moved = unsafe { mremap(block.cast(), old.size(), new.size(), MremapFlags::MAYMOVE) };
        moved.map_or(ptr::null_mut(), <*mut _>::cast)
    }

    pub(super) unsafe fn unmap(block: *mut u8, layout: Layout) {
        // Pages are given back first, which keeps no other thread from mapping; then only the addresses are left.
        // SAFETY: the caller's promise that it was mapped with this layout and that nobody uses it.
        unsafe {
            let _ = madvise(block.cast(), layout.size(), Advice::LinuxDontNeed);
            let _ = munmap(block.cast(), layout.size());
        }
    }
}

#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code, reason = "memory is allocated so")]
mod pages {
    use std::alloc::{GlobalAlloc, Layout, System};

    pub(super) fn map(layout: Layout) -> *mut u8 {
        // SAFETY: the size is not 0.
        unsafe { System.alloc_zeroed(layout) }
    }

    pub(super) unsafe fn remap(block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
        // SAFETY: the caller's promise that it was mapped with the old layout; both have the same alignment.
        unsafe { System.realloc(block, old, new.size()) }
    }

    pub(super) unsafe fn unmap(block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise that it was mapped with this layout.
        unsafe { System.dealloc(block, layout) }
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

    /// Keeps a buffer, unless it is too large or there are more than so many bytes then.
    fn put(&mut self, address: *mut u8, layout: Layout, most: usize) -> bool {
        let has_room = layout.size() <= MOST && self.count < MAX_BLOCKS && self.bytes + layout.size() <= most;
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
            pages::unmap(block.address, block.layout);
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
            purge();
            untrimmed = trim(untrimmed);
        }
    };
    // Other code does the same when memory runs out.
    let _ = thread::Builder::new().name("memory".to_owned()).spawn(clear);
}

/// Free memory of mimalloc's goes back to the system once its delay is over. mimalloc looks for such memory only when a thread wants or frees a page:
/// what a model's last run has freed would stay for as long as nothing else runs.
#[allow(unsafe_code, reason = "mimalloc has no other interface")]
fn purge() {
    // SAFETY: takes a flag; only memory that nobody uses is given back.
    unsafe { libmimalloc_sys::mi_collect(false) };
}

/// What libraries in C have freed, such as ONNX Runtime with a model's session, goes back to the system too, if it is much: the
/// C library's allocator, which they use, gives back only what is free at the end of its arenas.
///
/// What was given back still counts as free, so it is done again only when the count has changed: takes the count after
/// the last time and returns the one after this.
///
/// The count has 32 bits: what counts it in 64, `mallinfo2`, is not there before glibc 2.33. All that counts is how much it changed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the C library's allocator has no other interface")]
fn trim(last: u32) -> u32 {
    // SAFETY: reads counters.
    let free = unsafe { libc::mallinfo() }.fordblks.cast_unsigned();
    if !has_changed_much(last, free) {
        return last;
    }
    // SAFETY: takes a number; only memory that nobody uses is given back.
    unsafe { libc::malloc_trim(1 << 20) };
    free
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim(last: u32) -> u32 {
    last
}

/// Whether a count of bytes that starts again at 4 GiB has gone up or down by 8 MiB.
#[cfg_attr(
    not(all(target_os = "linux", target_env = "gnu")),
    allow(dead_code, reason = "other C libraries have no such count")
)]
fn has_changed_much(last: u32, now: u32) -> bool {
    const MUCH: u32 = 8 << 20;
    now.wrapping_sub(last).min(last.wrapping_sub(now)) >= MUCH
}

/// Tells the allocators to give freed memory back to the system. To be called before there are threads.
#[allow(
    unsafe_code,
    reason = "the allocators have no other interfaces; they are only given numbers"
)]
pub(crate) fn give_back_what_is_freed() {
    /// `mi_option_purge_delay`, which the crate has no name for.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    const MILLISECONDS: core::ffi::c_long = 100;
    // SAFETY: takes two numbers; what it does not know it ignores.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, MILLISECONDS) };
    // The C library's serves libraries in C, and builds for debugging. Left alone, it raises the size from which buffers are
    // mapped by themselves with each one that is freed, up to 32 MiB, and keeps smaller ones in up to eight arenas per processor.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_start_again_change_by_little() {
        let most = u32::MAX;
        for (last, now) in [
            (0, 0),
            (0, (8 << 20) - 1),
            (most, 1000),
            (1000, most),
            (9 << 20, 2 << 20),
        ] {
            assert!(!has_changed_much(last, now), "{last} {now}");
        }
        for (last, now) in [
            (0, 8 << 20),
            (8 << 20, 0),
            (most, 8 << 20),
            (1 << 30, 0),
            (0, 2 << 30),
        ] {
            assert!(has_changed_much(last, now), "{last} {now}");
        }
    }

    #[test]
    fn layouts_are_few_and_large_enough() {
        let mut layouts = std::collections::HashSet::new();
        for size in (LEAST..=MOST).step_by(4097) {
            let Some(layout) = Layout::from_size_align(size, 4).ok().and_then(mapped) else {
                panic!("{size} is not mapped");
            };
            assert!(layout.size() >= size && layout.size() <= size + size / 7);
            assert_eq!(mapped(layout), Some(layout));
            layouts.insert(layout.size());
        }
        assert!(layouts.len() <= 90, "{}", layouts.len());
        assert!(mapped(Layout::new::<[u8; 1000]>()).is_none());
        let beyond = Layout::from_size_align(MOST + 1, 4).ok().and_then(mapped);
        assert_eq!(beyond.map(|layout| layout.size()), Some(MOST + (MOST >> 4)));
        let aligned = Layout::from_size_align(LEAST, 2 * PAGE).ok();
        assert_eq!(aligned.and_then(mapped), None);
    }

    #[test]
    fn the_shelf_has_an_end() {
        let mut shelf = Shelf::new();
        let layout = |size: usize| Layout::from_size_align(size, 16).unwrap_or(Layout::new::<u8>());
        let address = |number: usize| ptr::without_provenance_mut::<u8>(number);
        let put = |shelf: &mut Shelf, number, size| shelf.put(address(number), layout(size), MAX_BYTES);
        assert!(put(&mut shelf, 1, 1 << 20) && put(&mut shelf, 2, 1 << 20));
        assert_eq!(shelf.take(layout(2 << 20)), None);
        // The last that came goes first.
        assert_eq!(shelf.take(layout(1 << 20)), Some(address(2)));
        assert!(put(&mut shelf, 3, MAX_BYTES - (1 << 20)));
        assert!(!put(&mut shelf, 4, LEAST));
        assert!(!put(&mut shelf, 4, MOST + 1));
        // A model's has more room.
        assert!(shelf.put(address(5), layout(LEAST), MAX_BYTES_OF_MODELS));
        assert_eq!(shelf.take(layout(LEAST)), Some(address(5)));
        assert!(shelf.take_old(1).is_none());
        assert_eq!(std::iter::from_fn(|| shelf.take_old(0)).count(), 2);
        for number in 0..2 * MAX_BLOCKS {
            put(&mut shelf, number + 10, LEAST);
        }
        assert!(shelf.count == MAX_BLOCKS && shelf.bytes <= MAX_BYTES);
        let left = std::iter::from_fn(|| shelf.take_old(0)).count();
        assert_eq!((left, shelf.bytes), (MAX_BLOCKS, 0));
    }

    #[test]
    fn models_keep_more_while_requests_take_little() -> Result<(), oip_types::ServiceError> {
        let budget = ByteBudget::new(8 << 20);
        let lease = oip_service::Lease::new(&budget, &oip_service::TimeLimits::default());
        let little = lease.charge(1 << 20)?;
        assert!(!is_short(&budget));
        let more = lease.charge(1)?;
        assert!(is_short(&budget));
        drop((little, more));
        assert_eq!(most(true, false), MAX_BYTES_OF_MODELS);
        assert_eq!((most(true, true), most(false, false)), (MAX_BYTES, MAX_BYTES));
        Ok(())
    }

    #[test]
    #[allow(unsafe_code, reason = "allocators are called so")]
    fn buffers_begin_where_they_must() {
        let mut blocks = Vec::new();
        for align in (0..13).map(|power| 1 << power) {
            for size in (1..600).chain((600..LEAST + 3 * PAGE).step_by(7 * 128 + 8)) {
                let Ok(layout) = Layout::from_size_align(size, align) else {
                    panic!("{size} aligned to {align}");
                };
                // SAFETY: it is freed once, below.
                let block = unsafe { Keeping.alloc(layout) };
                assert!(
                    !block.is_null() && block.addr().is_multiple_of(align),
                    "{layout:?}"
                );
                blocks.push((block, layout));
            }
        }
        for (block, layout) in blocks {
            // SAFETY: it was allocated with this layout.
            unsafe { Keeping.dealloc(block, layout) };
        }
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

    /// A loop in a model makes a million small values, and then nothing runs.
    #[cfg(target_os = "linux")]
    #[test]
    #[allow(unsafe_code, reason = "allocators are called so")]
    fn small_buffers_go_back_while_nothing_runs() {
        const BYTES: usize = 512 << 20;
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
            let pages: Option<usize> = pages.split(' ').nth(1).and_then(|count| count.parse().ok());
            pages.unwrap_or_default() * PAGE
        };
        give_back_what_is_freed();
        let before = resident();
        let layout = Layout::from_size_align(2048, 8).unwrap_or(Layout::new::<u8>());
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (freed, is_freed) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            // SAFETY: each is written within its layout and freed once.
            unsafe {
                let write = |block: *mut u8| {
                    ptr::write_bytes(block, 1, layout.size());
                    block
                };
                let blocks: Vec<*mut u8> = (0..BYTES / layout.size())
                    .map(|_| write(Keeping.alloc(layout)))
                    .collect();
                let most = resident();
                blocks
                    .into_iter()
                    .for_each(|block| Keeping.dealloc(block, layout));
                let _ = freed.send(most);
            }
            // The thread stays, as those of models do.
            let _ = wait.recv();
        });
        let most = is_freed.recv().unwrap_or_default();
        // mimalloc does nothing for a thread that never took anything from it.
        // SAFETY: it is freed once, with its layout.
        unsafe { Keeping.dealloc(Keeping.alloc(layout), layout) };
        assert!(most > before + BYTES / 2, "{most} of {before}");
        let has_gone = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(100));
            purge();
            resident() < before + BYTES / 4
        });
        assert!(has_gone, "{} MiB of {} stay", resident() >> 20, most >> 20);
        drop(done);
        assert!(thread.join().is_ok());
    }
}
