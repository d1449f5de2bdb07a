//! Tests that read, write and damage safetensors files, and compare the crate with the reference crate.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod editing;
mod hostile;
mod rules;
mod safetensors_crate;
mod support;
mod writing;
