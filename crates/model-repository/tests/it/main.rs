//! Tests of repositories: what is found in a directory, and the messages about the rest.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod configurations;
mod digests;
mod repositories;
mod support;
