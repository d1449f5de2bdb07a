//! Tests that detect, open, convert, verify and compare files of all formats.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod comparing;
mod converting;
mod detecting;
mod shards;
mod support;
