//! What both backends refuse, and what becomes of unusable interpreters. No test here needs Python; those that do are
//! `cargo xtask python`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refusals;
