//! Traces and metrics as a collector gets them: a receiver on a socket that reads HTTP and knows the messages by their fields.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exporting;
mod metrics;
