//! Anonymous mappings of Linux.

use std::{alloc::Layout, ptr};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

use crate::threads;

/// Minimum size of a mapping with huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Maps zeroed memory; returns null on failure.
#[allow(unsafe_code, reason = "memory is mapped so")]
pub(crate) fn map(layout: Layout) -> *mut u8 {
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
    if layout.size() >= HUGE_PAGE && threads::computes() {
        // SAFETY: the range was just mapped, and the advice does not change its contents.
        let _ = unsafe { madvise(block, layout.size(), Advice::LinuxHugepage) };
    }
    block.cast()
}

/// Resizes a mapping, and may move it. On failure, returns null and leaves the mapping unchanged.
///
/// # Safety
/// The block was mapped with the layout `old`, and nothing else uses it.
#[allow(unsafe_code, reason = "memory is mapped so")]
pub(crate) unsafe fn remap(block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
    // SAFETY: the caller guarantees that the block was mapped with the old layout and is not in use.
    let moved = unsafe { mremap(block.cast(), old.size(), new.size(), MremapFlags::MAYMOVE) };
    moved.map_or(ptr::null_mut(), <*mut _>::cast)
}

/// Returns a mapping to the system.
///
/// # Safety
/// The block was mapped with this layout, and nothing else uses it.
#[allow(unsafe_code, reason = "memory is mapped so")]
pub(crate) unsafe fn unmap(block: *mut u8, layout: Layout) {
    // Free the pages first, which does not block other threads' mappings; then unmap the address range.
    // SAFETY: the caller guarantees that the block was mapped with this layout and is not in use.
    unsafe {
        let _ = madvise(block.cast(), layout.size(), Advice::LinuxDontNeed);
        let _ = munmap(block.cast(), layout.size());
    }
}
