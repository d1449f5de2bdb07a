//! Tests which models repositories find in a directory, and the messages about other files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod configurations;
mod digests;
mod repositories;
mod support;
