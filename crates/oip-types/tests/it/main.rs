//! Tests of REST bodies through the public interface.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod memory;
mod requests;
mod responses;
mod round_trips;
