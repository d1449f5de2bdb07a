//! Tests against local servers, correct and faulty ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod changing;
#[cfg(feature = "async")]
mod futures;
mod hostile;
mod reading;
mod redirects;
mod server;
