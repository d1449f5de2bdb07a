//! Tests that read, write and damage BTF files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corpus;
mod decisions;
mod description;
mod golden;
mod hostile;
mod on_disk;
mod reading;
mod round_trips;
mod support;
mod writing;
