//! Tests of the allocator as the program's global one.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use caching_allocator::{CachingAllocator, cached_bytes, free_cached, set_cache_limit};

#[global_allocator]
static ALLOCATOR: CachingAllocator = CachingAllocator;

/// The limit of the cache, which each test sets.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Runs a test alone, with an empty cache and this limit.
fn with_limit(limit: usize, test: impl FnOnce()) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    set_cache_limit(|| LIMIT.load(Ordering::Relaxed));
    LIMIT.store(limit, Ordering::Relaxed);
    free_cached(usize::MAX);
    test();
}

const MIB: usize = 1 << 20;

#[test]
fn a_second_buffer_gets_the_memory_of_the_first() {
    with_limit(64 * MIB, || {
        let mut addresses = Vec::new();
        for _ in 0..3 {
            let buffer = vec![7_u8; 3 * MIB];
            addresses.push(buffer.as_ptr());
            assert_eq!(cached_bytes(), 0);
            drop(buffer);
            assert_eq!(cached_bytes(), 3 * MIB);
        }
        assert!(addresses.windows(2).all(|pair| pair[0] == pair[1]));
    });
}

#[test]
fn a_buffer_that_grows_moves_to_a_cached_one() {
    with_limit(64 * MIB, || {
        let large = vec![9_u8; 8 * MIB];
        let address = large.as_ptr();
        let mut growing = vec![7_u8; 2 * MIB];
        drop(large);
        growing.reserve_exact(6 * MIB);
        assert_eq!(growing.as_ptr(), address);
        assert_eq!(growing, vec![7; 2 * MIB]);
    });
}

#[test]
fn the_limit_holds_when_it_changes() {
    with_limit(10 * MIB, || {
        let buffers: Vec<Vec<u8>> = (0..4).map(|_| vec![1; 4 * MIB]).collect();
        drop(buffers);
        assert_eq!(cached_bytes(), 8 * MIB);
        // A smaller limit holds from the next buffer on.
        LIMIT.store(5 * MIB, Ordering::Relaxed);
        drop(vec![1_u8; 2 * MIB]);
        assert!(cached_bytes() <= 5 * MIB, "{}", cached_bytes());
        assert_eq!(free_cached(1), 2 * MIB);
        LIMIT.store(0, Ordering::Relaxed);
        drop(vec![1_u8; 2 * MIB]);
        assert_eq!(cached_bytes(), 0);
    });
}
