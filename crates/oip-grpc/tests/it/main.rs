//! The gRPC side with a service in memory, called without a network.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod compression;
mod contents;
mod copies;
mod delivery;
mod extensions;
mod failures;
mod memory;
mod panics;
mod places;
mod stream;
mod support;
mod wire;
