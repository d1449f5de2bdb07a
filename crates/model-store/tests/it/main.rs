//! Mirrors of in-memory stores, and of local servers that imitate S3, correctly or not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod mirror;
mod s3;
mod support;
