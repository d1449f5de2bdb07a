//! Which buffers are mapped individually, and with which sizes.

use std::alloc::Layout;

/// Minimum size of individually mapped buffers.
pub(crate) const LEAST_MAPPED: usize = 128 << 10;

/// Maximum size of cached buffers.
pub(crate) const LARGEST_CACHED: usize = 32 << 20;

/// Alignment of pages, valid on any machine.
pub(crate) const PAGE: usize = 4 << 10;

/// Returns the rounded layout with which buffers of about this size are mapped; `None` for small ones.
/// Applying this function to its result gives the same layout, which is at least as large as `layout`.
pub(crate) fn mapped(layout: Layout) -> Option<Layout> {
    if layout.size() < LEAST_MAPPED || layout.align() > PAGE {
        return None;
    }
    let step = match layout.size() {
        ..=LARGEST_CACHED => layout.size().next_power_of_two() >> 4,
        _ => LARGEST_CACHED >> 4,
    };
    let size = layout.size().checked_next_multiple_of(step)?;
    Layout::from_size_align(size, PAGE).ok()
}

/// Returns whether mimalloc's default alignment suffices for `layout`, which halves the work of an allocation.
/// mimalloc aligns blocks of at least 16 bytes to 16, smaller ones to 8.
pub(crate) fn is_aligned_anyway(layout: Layout) -> bool {
    layout.align() <= 8 || (layout.align() == 16 && layout.size() >= 16)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn layouts_are_few_and_large_enough() {
        let mut layouts = HashSet::new();
        for size in (LEAST_MAPPED..=LARGEST_CACHED).step_by(4097) {
            let Some(layout) = Layout::from_size_align(size, 4).ok().and_then(mapped) else {
                panic!("{size} is not mapped");
            };
            assert!(layout.size() >= size && layout.size() <= size + size / 7);
            assert_eq!(mapped(layout), Some(layout));
            layouts.insert(layout.size());
        }
        assert!(layouts.len() <= 90, "{}", layouts.len());
        assert!(mapped(Layout::new::<[u8; 1000]>()).is_none());
        let beyond = Layout::from_size_align(LARGEST_CACHED + 1, 4)
            .ok()
            .and_then(mapped);
        assert_eq!(
            beyond.map(|layout| layout.size()),
            Some(LARGEST_CACHED + (LARGEST_CACHED >> 4))
        );
        let aligned = Layout::from_size_align(LEAST_MAPPED, 2 * PAGE).ok();
        assert_eq!(aligned.and_then(mapped), None);
    }
}
