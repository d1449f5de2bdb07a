//! Tests with valid, unsupported and hostile PyTorch checkpoints.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod reading;
mod support;
mod written_by_pytorch;
