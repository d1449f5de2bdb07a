//! Which threads compute: their large buffers use huge pages.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
};

thread_local! {
    /// Whether this thread computes. The variable has no destructor, so the allocator may read it at any time.
    static IS_COMPUTE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the whole process only computes.
static IS_COMPUTE_PROCESS: AtomicBool = AtomicBool::new(false);

/// Marks the current thread as one that computes: its buffers of at least 2 MiB use huge pages.
pub fn mark_compute_thread() {
    IS_COMPUTE.set(true);
}

/// Marks all threads of this process, as [`mark_compute_thread`] does.
pub fn mark_compute_process() {
    IS_COMPUTE_PROCESS.store(true, Ordering::Relaxed);
}

/// Returns whether the current thread computes.
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only mappings of Linux use it")
)]
pub(crate) fn computes() -> bool {
    IS_COMPUTE.get() || IS_COMPUTE_PROCESS.load(Ordering::Relaxed)
}
