//! Tests of tensors through their public interface.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
#[cfg(feature = "ndarray")]
mod arrays;
mod slicing;
