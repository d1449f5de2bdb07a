//! Batching: the queue, the scheduler's decisions, and joining and splitting of requests.

pub(crate) mod batch;
pub(crate) mod queue;
#[cfg(test)]
mod queue_interleavings;
pub(crate) mod scheduler;
/// The locks that `queue.rs` uses; its interleaving tests replace them.
mod sync {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}
