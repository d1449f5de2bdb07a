//! Tests tensors and dimensions through their public interface.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod casts;
mod dims;
mod moves;
mod reuse;
mod tensors;
