//! Tests with valid and damaged GGUF files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dequantising;
mod editing;
mod hostile;
mod reading;
mod support;
mod writing;
