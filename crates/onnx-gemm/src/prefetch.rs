//! Prefetch hints.

/// Requests the cache line of `values[index]` into the L2 cache. An index past the end has no effect that a
/// program could observe. Does nothing where Rust has no stable intrinsic for it.
#[inline(always)]
pub(crate) fn prefetch(values: &[f32], index: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let line = values.as_ptr().wrapping_add(index);
        // SAFETY: prefetching reads no memory that a program could observe, and never faults, whatever the
        // address.
        #[allow(unsafe_code, reason = "there is no safe function for it")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, index);
}
