//! Tests of traces and metrics as a collector receives them, decoded by field number.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exporting;
mod metrics;
