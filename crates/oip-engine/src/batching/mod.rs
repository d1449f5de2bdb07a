//! Which requests wait, which of them run together, and how they are joined and taken apart again.

pub(crate) mod batch;
pub(crate) mod independence;
pub(crate) mod queue;
#[cfg(test)]
mod queue_interleavings;
pub(crate) mod scheduler;
/// What `queue.rs` locks with, so that tests can put something else in its place.
mod sync {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}
