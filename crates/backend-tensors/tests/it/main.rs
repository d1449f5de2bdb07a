//! Tests of tensor files as models: alone, in the engine, and over HTTP.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
mod hostile;
mod requests;
mod serving;
mod support;
