//! The gRPC side with a service in memory, called without a network.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod contents;
mod failures;
mod support;
mod wire;
