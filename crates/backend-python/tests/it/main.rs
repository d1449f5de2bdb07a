//! Tests of what both backends refuse, and of the errors for unusable interpreters. None of them needs
//! Python; `cargo xtask python` runs those that do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refusals;
