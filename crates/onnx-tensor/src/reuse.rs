//! Reuses the memory of a run's values. A kernel that writes each element of its output takes the memory of a
//! value that no later step reads, without zeroing it first.
//!
//! Memory is reused within one run only, so that no run can read values of another run, even if a kernel has
//! a bug. Requests that are batched together share a run.

use std::{cell::RefCell, marker::PhantomData};

use crate::{ElementType, storage::Storage};

/// Minimum number of bytes of a value whose memory is kept. Zeroing less memory takes a negligible time.
const LEAST: usize = 1 << 12;

/// Maximum number of bytes that are kept.
const MOST_BYTES: usize = 16 << 20;
/// Maximum number of values whose memory is kept.
const MOST_VALUES: usize = 8;

thread_local! {
    /// The memory that this thread's run keeps; `None` outside of a run.
    static KEPT: RefCell<Option<Vec<Storage>>> = const { RefCell::new(None) };
}

/// A run that keeps the memory of its values. Dropping it frees the memory.
#[must_use]
pub struct Reuse {
    /// The run that began before this one on the same thread.
    outer: Option<Vec<Storage>>,
    /// The kept memory belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

/// Keeps the memory of dropped values on this thread until the result is dropped.
pub fn start() -> Reuse {
    Reuse {
        outer: KEPT.replace(Some(Vec::new())),
        _not_send: PhantomData,
    }
}

impl Drop for Reuse {
    fn drop(&mut self) {
        KEPT.set(self.outer.take());
    }
}

/// Keeps the memory of a value that no later step reads.
pub(crate) fn give(storage: Storage) {
    let bytes = size(&storage);
    if !(LEAST..=MOST_BYTES).contains(&bytes) {
        return;
    }
    KEPT.with_borrow_mut(|kept| {
        let Some(kept) = kept else { return };
        let mut total = bytes + kept.iter().map(size).sum::<usize>();
        while total > MOST_BYTES || kept.len() >= MOST_VALUES {
            total -= size(&kept.remove(0));
        }
        kept.push(storage);
    });
}

/// Returns the bytes of memory of an owned vector of numbers; 0 for strings, and for shared memory.
fn size(storage: &Storage) -> usize {
    storage.width().map_or(0, |width| width * storage.capacity())
}

/// Returns whether [`take`] returns memory.
pub(crate) fn has(element_type: ElementType, count: usize) -> bool {
    KEPT.with_borrow(|kept| {
        kept.iter()
            .flatten()
            .any(|storage| fits(storage, element_type, count))
    })
}

fn fits(storage: &Storage, element_type: ElementType, count: usize) -> bool {
    let fitting = count..=count + count / 8;
    storage.width() == Some(element_type.size_of()) && fitting.contains(&storage.capacity())
}

/// Takes kept memory for `count` elements of this width. Its contents are unspecified. Returns `None` if no
/// kept memory has a similar size.
pub(crate) fn take(element_type: ElementType, count: usize) -> Option<Storage> {
    KEPT.with_borrow_mut(|kept| {
        let kept = kept.as_mut()?;
        // The memory that was kept last is the most likely to be in the processor's caches.
        let index = kept
            .iter()
            .rposition(|storage| fits(storage, element_type, count))?;
        let mut storage = kept.remove(index);
        storage.resize(count);
        Some(storage)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::storage::Stored;

    const COUNT: usize = LEAST;

    fn ones(count: usize) -> Storage {
        f32::store(vec![1.0; count])
    }

    /// Takes kept memory, and returns the first element that it still contains.
    fn taken(element_type: ElementType, count: usize) -> Option<u32> {
        match take(element_type, count)? {
            Storage::U32(units) => Some(units[0]),
            _ => None,
        }
    }

    const ONE: Option<u32> = Some(1.0f32.to_bits());

    #[test]
    fn memory_is_reused_within_one_run() {
        let take = || taken(ElementType::F32, COUNT);
        give(ones(COUNT));
        assert_eq!(take(), None, "outside of a run");
        let run = start();
        give(ones(COUNT));
        let inner = start();
        assert_eq!(take(), None, "of another run");
        drop(inner);
        assert_eq!(take(), ONE);
        assert_eq!(take(), None, "taken already");
        give(ones(COUNT));
        drop(run);
        assert_eq!(take(), None, "after the run");
    }

    #[test]
    fn memory_of_another_size_or_width_is_not_taken() {
        let _run = start();
        give(ones(COUNT));
        assert_eq!(taken(ElementType::F32, COUNT - COUNT / 8), None);
        assert_eq!(taken(ElementType::F32, COUNT + 1), None);
        assert_eq!(taken(ElementType::F64, COUNT / 2), None);
        assert_eq!(taken(ElementType::I32, COUNT - 1), ONE);
    }

    #[test]
    fn little_memory_is_kept() {
        let _run = start();
        for _ in 0..2 * MOST_VALUES {
            give(ones(COUNT));
        }
        give(ones(MOST_BYTES / 4 + 1));
        let kept = || KEPT.with_borrow(|kept| kept.as_ref().unwrap().iter().map(size).collect::<Vec<_>>());
        assert_eq!(kept().len(), MOST_VALUES);
        for _ in 0..MOST_VALUES {
            give(ones(MOST_BYTES / 8));
        }
        assert!(kept().iter().sum::<usize>() <= MOST_BYTES);
    }
}
