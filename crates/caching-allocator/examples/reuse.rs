//! Allocates the same large buffer again and again, with and without the cache, and prints the times.
//!
//! ```sh
//! cargo run --release --package caching-allocator --example reuse
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{hint::black_box, time::Instant};

use caching_allocator::CachingAllocator;

#[global_allocator]
static ALLOCATOR: CachingAllocator = CachingAllocator;

const BYTES: usize = 16 << 20;
const TIMES: u32 = 50;

fn main() {
    caching_allocator::return_freed_memory();
    for (what, is_cached) in [("cached", true), ("fresh", false)] {
        let start = Instant::now();
        for _ in 0..TIMES {
            drop(black_box(vec![1_u8; BYTES]));
            if !is_cached {
                caching_allocator::free_cached(usize::MAX);
            }
        }
        println!(
            "{what}: {:?} for 16 MiB, {} MiB cached",
            start.elapsed() / TIMES,
            caching_allocator::cached_bytes() >> 20
        );
    }
}
