//! Which requests wait, which of them run together, and how they are joined and taken apart again.

pub(crate) mod batch;
pub(crate) mod queue;
#[cfg(test)]
mod queue_interleavings;
pub(crate) mod scheduler;
/// The locks of `queue.rs`, which tests replace.
mod sync {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}
