//! Batching: queues requests, decides which of them run together, concatenates them and splits their outputs.

pub(crate) mod batch;
pub(crate) mod queue;
#[cfg(test)]
mod queue_interleavings;
pub(crate) mod scheduler;
/// The locks that `queue.rs` uses; its interleaving tests replace them.
mod sync {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}
