//! safetensors files, read, written, attacked, and checked against the format's home crate.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod editing;
mod home_crate;
mod hostile;
mod rules;
mod support;
mod writing;
