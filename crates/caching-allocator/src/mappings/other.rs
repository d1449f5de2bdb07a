//! Buffers of the system's allocator, on systems other than Linux.

use std::alloc::{GlobalAlloc, Layout, System};

/// Allocates zeroed memory; returns null on failure.
#[allow(unsafe_code, reason = "memory is allocated so")]
pub(crate) fn map(layout: Layout) -> *mut u8 {
    // SAFETY: the size is not 0.
    unsafe { System.alloc_zeroed(layout) }
}

/// Resizes a buffer, and may move it. On failure, returns null and leaves the buffer unchanged.
///
/// # Safety
/// The block was allocated with the layout `old`, nothing else uses it, and both layouts have the same
/// alignment.
#[allow(unsafe_code, reason = "memory is allocated so")]
pub(crate) unsafe fn remap(block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
    // SAFETY: the caller upholds the contract.
    unsafe { System.realloc(block, old, new.size()) }
}

/// Frees a buffer.
///
/// # Safety
/// The block was allocated with this layout, and nothing else uses it.
#[allow(unsafe_code, reason = "memory is allocated so")]
pub(crate) unsafe fn unmap(block: *mut u8, layout: Layout) {
    // SAFETY: the caller upholds the contract.
    unsafe { System.dealloc(block, layout) }
}
