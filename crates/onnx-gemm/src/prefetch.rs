//! Prefetching: while one panel of a matrix is multiplied, the next one is read into the L2 cache.

/// Requests the cache line of `values[index]` into the L2 cache; `index` may be past the end. Does nothing on
/// architectures without a stable intrinsic.
#[inline(always)]
pub(crate) fn prefetch(values: &[f32], index: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let line = values.as_ptr().wrapping_add(index);
        // SAFETY: a prefetch is a hint. It never faults, whatever the address, and changes no memory.
        #[allow(unsafe_code, reason = "there is no safe function for it")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, index);
}
