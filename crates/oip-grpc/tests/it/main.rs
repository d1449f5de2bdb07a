//! Tests of the gRPC side with an in-memory service, without a network.
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
mod stream;
mod stream_slots;
mod support;
mod wire;
