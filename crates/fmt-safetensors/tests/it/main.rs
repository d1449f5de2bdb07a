//! Tests that read, write and damage safetensors files, and compare the crate with the reference crate.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod editing;
mod home_crate;
mod hostile;
mod rules;
mod support;
mod writing;
