//! Numbers the loads of models, so that no cached response outlives its model.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a load, a part of the cache key. The number changes with each load of a model and with each
/// plan of a pipeline; a pipeline is replanned when one of its models changes. Numbers are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    pub(crate) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn of(number: u64) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}
