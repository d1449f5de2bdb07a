//! The allocator gives back what requests have freed.

/// Tells the C library to give freed memory back to the system. To be called before there are threads.
///
/// Left alone, it raises the size from which buffers are mapped by themselves with each one that is freed, up to 32 MiB,
/// and keeps smaller ones in up to eight arenas per processor. Then a server whose memory budget is all free holds a
/// multiple of it.
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
