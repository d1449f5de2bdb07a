//! Returns unused memory to the system: old buffers of the cache, and free memory of the allocators.

use std::{thread, time::Duration};

use crate::cache::{free_old, make_older};

/// Interval at which unused buffers are returned to the system. A buffer stays for one to two intervals.
const INTERVAL: Duration = Duration::from_secs(2);

/// Starts a thread that returns unused buffers, and free memory of mimalloc and glibc, to the system every two
/// seconds. If the thread cannot start, the buffers stay in the cache, whose size is limited.
pub fn start_trimming() {
    let trim_forever = || {
        let mut untrimmed = 0;
        loop {
            thread::sleep(INTERVAL);
            free_old(1);
            make_older();
            purge();
            untrimmed = trim(untrimmed);
        }
    };
    // Without the thread, the process only keeps more memory.
    let _ = thread::Builder::new()
        .name("memory".to_owned())
        .spawn(trim_forever);
}

/// Makes mimalloc return free memory after its purge delay. mimalloc purges only when a thread allocates or
/// frees a page, so memory that the last run of a model freed would otherwise stay while nothing runs.
#[allow(unsafe_code, reason = "mimalloc has no other interface")]
fn purge() {
    // SAFETY: the argument is a flag, and the call frees only unused memory.
    unsafe { libmimalloc_sys::mi_collect(false) };
}

/// Makes the C library's allocator return large amounts of free memory, such as the memory of a C++ library:
/// on its own, it returns only memory that is free at the end of its arenas.
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

/// Configures mimalloc and glibc to return freed memory to the system. Call this before threads start. A
/// program with another global allocator may call it for the memory of C libraries.
#[allow(
    unsafe_code,
    reason = "the allocators have no other interfaces; they are only given numbers"
)]
pub fn return_freed_memory() {
    /// The value of `mi_option_purge_delay`, for which the crate has no constant.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    const MILLISECONDS: core::ffi::c_long = 100;
    // SAFETY: the arguments are two numbers, and unknown options are ignored.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, MILLISECONDS) };
    // These settings apply to buffers of C libraries, and to programs with another global allocator. By
    // default, glibc raises its mmap threshold up to 32 MiB whenever a mapped buffer is freed, and uses up to
    // eight arenas per CPU for smaller buffers.
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

    /// Checks that small buffers that a model frees return to the system, even if nothing runs afterwards.
    #[cfg(target_os = "linux")]
    #[test]
    #[allow(unsafe_code, reason = "allocators are called so")]
    fn small_buffers_go_back_while_nothing_runs() {
        use std::{
            alloc::{GlobalAlloc, Layout},
            ptr,
        };

        use crate::{CachingAllocator, layouts::PAGE};

        const BYTES: usize = 512 << 20;
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
            let pages: Option<usize> = pages.split(' ').nth(1).and_then(|count| count.parse().ok());
            pages.unwrap_or_default() * PAGE
        };
        return_freed_memory();
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
