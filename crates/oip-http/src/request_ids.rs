use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// Makes ids for requests that come without one: clients of the protocol want one in every answer.
///
/// They are unique within this process, and differ from those of others by a random start.
pub(crate) struct RequestIds {
    state: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU64::new(RandomState::new().hash_one("request ids")),
        }
    }

    /// The next id.
    pub(crate) fn next(&self) -> String {
        // SplitMix64: steps of an odd constant visit every number once, and the mixing keeps them distinct.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut id = self.state.fetch_add(STEP, Ordering::Relaxed);
        id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        format!("{:016x}", id ^ (id >> 31))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_do_not_repeat() {
        let ids = RequestIds::new();
        let made: HashSet<String> = (0..10_000).map(|_| ids.next()).collect();
        assert_eq!(made.len(), 10_000);
        assert!(made.iter().all(|id| id.len() == 16));
    }
}
