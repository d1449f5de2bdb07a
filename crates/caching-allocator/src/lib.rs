//! A global allocator for servers: mimalloc for small buffers, and a bounded cache of mappings for large ones.
//!
//! ```
//! use caching_allocator::CachingAllocator;
//!
//! #[global_allocator]
//! static ALLOCATOR: CachingAllocator = CachingAllocator;
//!
//! // Before other threads start: return freed memory soon, and empty the cache while nothing needs it.
//! caching_allocator::return_freed_memory();
//! caching_allocator::start_trimming();
//! // The cache never holds more than this.
//! caching_allocator::set_cache_limit(|| 64 << 20);
//!
//! drop(std::hint::black_box(vec![1_u8; 1 << 20]));
//! assert_eq!(caching_allocator::cached_bytes(), 1 << 20);
//! // The next buffer of about this size reuses the memory, without page faults.
//! let again = std::hint::black_box(vec![2_u8; 1 << 20]);
//! assert_eq!(caching_allocator::cached_bytes(), 0);
//! # drop(again);
//! ```
//!
//! In the C library's allocator, threads share arenas, each with a lock. A thread that needs ten bytes for a
//! health check then waits for a low-priority thread that holds the lock but has no CPU, or that grows the
//! arena while other threads change the address space. Under load such a wait takes tens of milliseconds.
//! mimalloc has a heap per thread. Large buffers, however, would stay in those heaps (a gigabyte under load),
//! so buffers of at least 128 KiB are mapped individually, and returned to the system when they are freed.
//!
//! Page faults on fresh mappings can take a third of the time of the work on them: intermediate tensors of a
//! neural network and bodies of requests are such buffers. Freed buffers of up to 32 MiB are therefore cached
//! for reuse at the same size, for two to four seconds, up to a [limit](set_cache_limit) that the program may
//! change at any time. Sizes are rounded up by at most a seventh, so that buffers of about the same size
//! match.
//!
//! Large buffers of [compute threads](mark_compute_thread) use huge pages, for which one page fault maps 512
//! times as much. Buffers of other threads do not: on the first touch of a huge page the system clears 2 MiB.
//! mimalloc requests huge pages unless it is built without them, as here (its feature `no_thp`).
//!
//! On systems other than Linux, the system's allocator takes the place of mappings.

mod allocator;
mod cache;
#[cfg(feature = "count")]
mod counting;
mod layouts;
mod mappings;
mod threads;
mod trimming;

pub use allocator::CachingAllocator;
pub use cache::{cached_bytes, free_cached, set_cache_limit};
#[cfg(feature = "count")]
pub use counting::CountingAllocator;
pub use threads::{mark_compute_process, mark_compute_thread};
pub use trimming::{return_freed_memory, start_trimming};
