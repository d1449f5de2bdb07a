//! Tests of refused models, and of the errors for unusable interpreters. These tests need no Python; `cargo
//! xtask python` runs the tests that need it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refusals;
