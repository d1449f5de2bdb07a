//! Tests of the crate's public interface: repositories, configurations and lists of digests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod configurations;
mod digests;
mod repositories;
mod support;
