//! What both backends refuse, and the errors for unusable interpreters. No test here needs Python; those that do are
//! `cargo xtask python`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refusals;
