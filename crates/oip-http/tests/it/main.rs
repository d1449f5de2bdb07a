//! The REST side with a service in memory, called without a network.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bodies;
mod endpoints;
mod failures;
mod support;
