//! Tests of the public interface: text in, checked configuration or typed error out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod errors;
mod whole;
