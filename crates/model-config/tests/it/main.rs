//! Tests the public interface, from the text to a checked configuration or a typed error.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod end_to_end;
mod errors;
