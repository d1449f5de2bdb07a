//! NumPy's formats, read, written and attacked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod archives;
mod arrays;
mod hostile;
mod numpy;
mod round_trips;
mod support;
