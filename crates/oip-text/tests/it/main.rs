//! Integration tests of the public interface.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod model;
mod steps;
mod support;
