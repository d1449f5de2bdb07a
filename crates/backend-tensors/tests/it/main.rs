//! Tensor files as models: by themselves, in the engine, and behind a transport.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
mod hostile;
mod requests;
mod serving;
mod support;
