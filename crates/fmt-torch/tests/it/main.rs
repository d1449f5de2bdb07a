//! PyTorch checkpoints: valid, unsupported and hostile ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod reading;
mod real;
mod support;
