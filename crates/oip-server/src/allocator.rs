//! The allocator: mimalloc for small buffers. Large buffers are mapped individually, and some are cached for
//! a while after they are freed.
//!
//! In the C library's allocator, threads share arenas, each with a lock. A thread that needs ten bytes for a
//! liveness response then waits for a low-priority thread that holds the lock but has no CPU, or that grows
//! the arena while other threads change the address space. Such a wait takes tens of milliseconds under
//! attack. mimalloc has a heap per thread. Large buffers, however, would stay in those heaps (a gigabyte
//! under attack), so they are mapped individually and returned to the system. The intermediate tensors of a
//! network are large buffers too, and page faults on fresh mappings would take a third of a run's time.
//! [`CachingAllocator`] therefore caches freed buffers for reuse at the same size, but only for a few seconds
//! and with eviction of the oldest. Buffers of several megabytes for models use huge pages, for which one
//! page fault maps 512 times as much. Buffers for requests do not use huge pages, whatever their size: on the
//! first touch of a huge page the system clears 2 MiB, which the memory budget does not account for. mimalloc
//! requests huge pages unless it is built without them (its feature `no_thp`); under attack, clearing them
//! would take half of the liveness thread's work.
//!
//! Debug builds do not use this allocator: the workspace's tests link a counting allocator, and a program can
//! have only one.
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

/// Minimum size of individually mapped buffers.
const LEAST: usize = 128 << 10;
/// Maximum size of cached buffers.
const MOST: usize = 32 << 20;
/// Alignment of pages, valid on any machine.
const PAGE: usize = 4 << 10;

/// Maximum size of the cache in bytes, and in buffers.
const MAX_BYTES: usize = 32 << 20;
const MAX_BLOCKS: usize = 192;
/// Maximum size of the cache for buffers that models free while requests use little memory. The size suffices
/// for the intermediate tensors of one run of a vision network.
const MAX_BYTES_OF_MODELS: usize = 128 << 20;
/// Requests count as using little memory while they hold at most 1/`LITTLE` of the budget.
const LITTLE: u64 = 8;

/// Interval at which unused buffers are returned to the system. A buffer stays for one to two intervals.
const INTERVAL: Duration = Duration::from_secs(2);

#[cfg(all(not(debug_assertions), not(feature = "count-allocations")))]
#[global_allocator]
static ALLOCATOR: CachingAllocator = CachingAllocator;

#[cfg(all(not(debug_assertions), feature = "count-allocations"))]
#[global_allocator]
static ALLOCATOR: counting::CountingAllocator = counting::CountingAllocator;

/// Counts allocations, to measure the cost of a request. Production builds do not contain this module.
#[cfg(feature = "count-allocations")]
pub(crate) mod counting {
    use std::{
        alloc::{GlobalAlloc, Layout},
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::CachingAllocator;

    static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
    static BYTES: AtomicU64 = AtomicU64::new(0);

    /// Returns the number of allocations, and of allocated bytes, since the start. A reallocation counts as
    /// one more.
    pub(crate) fn counted() -> (u64, u64) {
        (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
    }

    fn count(bytes: usize) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The global allocator, extended by counters.
    pub(super) struct CountingAllocator;

    // SAFETY: every call is delegated to `CachingAllocator`.
    #[allow(unsafe_code, reason = "an allocator can only be written so")]
    unsafe impl GlobalAlloc for CountingAllocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size());
            // SAFETY: the caller upholds the contract.
            unsafe { CachingAllocator.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            count(layout.size());
            // SAFETY: the caller upholds the contract.
            unsafe { CachingAllocator.alloc_zeroed(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the caller upholds the contract.
            unsafe { CachingAllocator.dealloc(block, layout) }
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
            count(new_size);
            // SAFETY: the caller upholds the contract.
            unsafe { CachingAllocator.realloc(block, layout, new_size) }
        }
    }
}

thread_local! {
    /// Whether this thread loads or runs models. The variable has no destructor, so the allocator may read it
    /// at any time.
    static IS_MODELS: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread's allocations as belonging to models.
pub(crate) fn note_model_thread() {
    IS_MODELS.set(true);
}

/// Whether this process is a worker, which only runs a model.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// Marks all allocations of this process as belonging to a model.
pub(crate) fn note_worker() {
    IS_WORKER.store(true, Ordering::Relaxed);
}

/// The memory budget that all requests share.
static BUDGET: OnceLock<ByteBudget> = OnceLock::new();

/// Sets the request memory budget. Later calls have no effect.
pub(crate) fn note_budget(budget: ByteBudget) {
    let _ = BUDGET.set(budget);
}

/// Returns whether requests use so much memory that the cache should be small.
fn is_short(budget: &ByteBudget) -> bool {
    budget.used() > budget.limit() / LITTLE
}

/// Returns the maximum size of the cache, given whether a model thread frees the buffer and whether memory is
/// short.
fn most(is_models: bool, is_short: bool) -> usize {
    match is_models && !is_short {
        true => MAX_BYTES_OF_MODELS,
        false => MAX_BYTES,
    }
}

/// Returns whether this thread's allocations belong to models.
fn is_for_models() -> bool {
    IS_MODELS.get() || IS_WORKER.load(Ordering::Relaxed)
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf::new());

/// mimalloc for small buffers, cached mappings for large ones.
struct CachingAllocator;

/// Allocates small buffers without contention between threads.
static SMALL: MiMalloc = MiMalloc;

impl CachingAllocator {
    /// Takes a buffer from the cache. Never waits: if another thread holds the lock, returns `None`.
    fn take(layout: Layout) -> Option<*mut u8> {
        let mut shelf = match SHELF.try_lock() {
            Ok(shelf) => shelf,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        shelf.take(layout)
    }

    /// Maps memory. If the system is out of memory, empties the cache and retries.
    fn map(layout: Layout) -> *mut u8 {
        let block = pages::map(layout);
        if !block.is_null() || give_back(0) == 0 {
            return block;
        }
        pages::map(layout)
    }

    /// Adds a buffer to the cache, and evicts the oldest buffers if needed. Returns whether the buffer was
    /// added.
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
            // A model's buffers do not evict buffers of requests, unless the cache must shrink.
            if layout.size() > MOST || (shelf.bytes > most && !is_short) {
                return false;
            }
            let Some(oldest) = shelf.take_old(0) else {
                return false;
            };
            // The buffer is unmapped after the lock is released.
            drop(shelf);
            // SAFETY: the buffer was mapped with this layout, and nothing else refers to it.
            #[allow(unsafe_code, reason = "as for the allocator")]
            unsafe {
                pages::unmap(oldest.address, oldest.layout);
            }
        }
    }
}

/// Returns the rounded layout with which buffers of about this size are mapped; `None` for small ones.
/// Applying this function to its result gives the same layout, which is at least as large as `layout`.
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

/// Returns whether mimalloc's default alignment suffices for `layout`, which halves the work of an
/// allocation.
/// mimalloc aligns blocks of at least 16 bytes to 16, smaller ones to 8.
fn is_aligned_anyway(layout: Layout) -> bool {
    layout.align() <= 8 || (layout.align() == 16 && layout.size() >= 16)
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
        Self::take(layout).unwrap_or_else(|| Self::map(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(larger) = mapped(layout) else {
            // SAFETY: the caller upholds the contract.
            return unsafe { SMALL.alloc_zeroed(layout) };
        };
        if let Some(block) = Self::take(larger) {
            // SAFETY: the block has at least this size.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
            return block;
        }
        // The system returns zeroed pages.
        Self::map(larger)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match mapped(layout) {
            Some(layout) if Self::put(block, layout) => {}
            // SAFETY: the buffer was mapped with this layout.
            Some(layout) => unsafe { pages::unmap(block, layout) },
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
            (Some(old), Some(new)) => unsafe { pages::remap(block, old, new) },
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

/// Page-granular memory from the system.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "memory is mapped so")]
mod pages {
    use std::{alloc::Layout, ptr};

    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

    /// Maps zeroed memory; returns null on failure.
    pub(super) fn map(layout: Layout) -> *mut u8 {
        // SAFETY: a new mapping at an address that the system chooses.
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
            // SAFETY: the range was just mapped, and the advice does not change its contents.
            let _ = unsafe { madvise(block, layout.size(), Advice::LinuxHugepage) };
        }
        block.cast()
    }

    /// Minimum size of a mapping with huge pages.
    const HUGE_PAGE: usize = 2 << 20;

    /// Resizes a mapping, and may move it. On failure, returns null and leaves the mapping unchanged.
    pub(super) unsafe fn remap(block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the block was mapped with the old layout and is not in use.
        let moved = unsafe { mremap(block.cast(), old.size(), new.size(), MremapFlags::MAYMOVE) };
        moved.map_or(ptr::null_mut(), <*mut _>::cast)
    }

    pub(super) unsafe fn unmap(block: *mut u8, layout: Layout) {
        // Free the pages first, which does not block other threads' mappings; then unmap the address range.
        // SAFETY: the caller guarantees that the block was mapped with this layout and is not in use.
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
        // SAFETY: the caller guarantees that the block was mapped with the old layout; both layouts have the
        // same alignment.
        unsafe { System.realloc(block, old, new.size()) }
    }

    pub(super) unsafe fn unmap(block: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that the block was mapped with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

/// The cache of freed buffers. It has a fixed size, because the allocator itself cannot allocate.
struct Shelf {
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

// SAFETY: nothing else uses the memory at the addresses, whichever thread accesses the cache.
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

    /// Takes the most recently freed buffer of this layout, which may still be in the CPU's cache.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let index = self.blocks[..self.count]
            .iter()
            .rposition(|block| block.layout == layout)?;
        Some(self.remove(index).address)
    }

    /// Caches a buffer, unless it is too large or the cache would exceed `most` bytes.
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

    /// Takes a buffer that is at least `age` intervals old.
    fn take_old(&mut self, age: u32) -> Option<Block> {
        let index = self.blocks[..self.count]
            .iter()
            .position(|block| block.age >= age)?;
        Some(self.remove(index))
    }
}

/// Returns buffers that are at least `age` intervals old to the system. Returns the number of bytes freed.
fn give_back(age: u32) -> usize {
    let mut freed = 0;
    while let Some(block) = SHELF.lock().unwrap_or_else(PoisonError::into_inner).take_old(age) {
        freed += block.layout.size();
        // SAFETY: the buffer was allocated with this layout, and nothing else refers to it.
        #[allow(unsafe_code, reason = "as for the allocator")]
        unsafe {
            pages::unmap(block.address, block.layout);
        }
    }
    freed
}

/// Starts a thread that returns unused buffers to the system. If the thread cannot start, the buffers stay in
/// the cache, whose size is limited.
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
    // Without the thread, the server only keeps more memory.
    let _ = thread::Builder::new().name("memory".to_owned()).spawn(clear);
}

/// Makes mimalloc return free memory after its purge delay. mimalloc purges only when a thread allocates or
/// frees a page, so memory that a model's last run freed would otherwise stay while nothing runs.
#[allow(unsafe_code, reason = "mimalloc has no other interface")]
fn purge() {
    // SAFETY: the argument is a flag, and the call frees only unused memory.
    unsafe { libmimalloc_sys::mi_collect(false) };
}

/// Makes the C library's allocator return large amounts of free memory, such as the memory of an ONNX Runtime
/// session: on its own, it returns only memory that is free at the end of its arenas.
///
/// Returned memory still counts as free, so the function trims only when the count of free bytes has changed
/// by a lot. `last` is the count at the previous trim. Returns the current count after a trim, or else
/// `last`.
///
/// The count has 32 bits, because `mallinfo2` with 64 bits needs glibc 2.33. Only differences between counts
/// matter.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the C library's allocator has no other interface")]
fn trim(last: u32) -> u32 {
    // SAFETY: the call only reads counters.
    let free = unsafe { libc::mallinfo() }.fordblks.cast_unsigned();
    if !has_changed_much(last, free) {
        return last;
    }
    // SAFETY: the argument is a number, and the call frees only unused memory.
    unsafe { libc::malloc_trim(1 << 20) };
    free
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim(last: u32) -> u32 {
    last
}

/// Returns whether a 32-bit byte count has changed by at least 8 MiB in either direction.
#[cfg_attr(
    not(all(target_os = "linux", target_env = "gnu")),
    allow(dead_code, reason = "other C libraries have no such count")
)]
fn has_changed_much(last: u32, now: u32) -> bool {
    const MUCH: u32 = 8 << 20;
    now.wrapping_sub(last).min(last.wrapping_sub(now)) >= MUCH
}

/// Configures the allocators to return freed memory to the system. Must be called before threads start.
#[allow(
    unsafe_code,
    reason = "the allocators have no other interfaces; they are only given numbers"
)]
pub(crate) fn give_back_what_is_freed() {
    /// The value of `mi_option_purge_delay`, for which the crate has no constant.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    const MILLISECONDS: core::ffi::c_long = 100;
    // SAFETY: the arguments are two numbers, and unknown options are ignored.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, MILLISECONDS) };
    // These settings apply to the C library's own buffers and to debug builds. By default, glibc raises its
    // mmap threshold up to 32 MiB whenever a mapped buffer is freed, and uses up to eight arenas per CPU for
    // smaller buffers.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        // Setting the threshold also disables its automatic increase.
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 1 << 20),
        (libc::M_ARENA_MAX, 2),
    ] {
        // SAFETY: the arguments are two numbers, and unknown parameters are rejected.
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
        // The most recently freed buffer is reused first.
        assert_eq!(shelf.take(layout(1 << 20)), Some(address(2)));
        assert!(put(&mut shelf, 3, MAX_BYTES - (1 << 20)));
        assert!(!put(&mut shelf, 4, LEAST));
        assert!(!put(&mut shelf, 4, MOST + 1));
        // The cache may be larger for models' buffers.
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
    #[allow(unsafe_code, reason = "allocators are called so")]
    fn buffers_keep_what_is_in_them() {
        let run = |seed: u8| {
            for round in 0..30usize {
                let size = LEAST - 3 + round * 8111;
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
                    let block = CachingAllocator.realloc(block, layout(2 * size), round + 1);
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
        give_back(0);
    }

    /// Checks that small buffers that a model frees return to the system, even if nothing runs afterwards.
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
            // SAFETY: each block is written within its layout and freed once.
            unsafe {
                let write = |block: *mut u8| {
                    ptr::write_bytes(block, 1, layout.size());
                    block
                };
                let blocks: Vec<*mut u8> = (0..BYTES / layout.size())
                    .map(|_| write(CachingAllocator.alloc(layout)))
                    .collect();
                let most = resident();
                blocks
                    .into_iter()
                    .for_each(|block| CachingAllocator.dealloc(block, layout));
                let _ = freed.send(most);
            }
            // The thread stays alive, as model threads do.
            let _ = wait.recv();
        });
        let most = is_freed.recv().unwrap_or_default();
        // mimalloc ignores threads that never allocated. SAFETY: the block is freed once, with its layout.
        unsafe { CachingAllocator.dealloc(CachingAllocator.alloc(layout), layout) };
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
