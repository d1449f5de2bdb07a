//! PyTorch checkpoints: what is read, what is refused, and what hostile ones come to.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod reading;
mod real;
mod support;
