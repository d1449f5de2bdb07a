//! Tests that read and write valid and damaged files of NumPy's formats.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod archives;
mod arrays;
mod hostile;
mod numpy;
mod round_trips;
mod support;
