//! Tests sessions through their public interface.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod memory;
