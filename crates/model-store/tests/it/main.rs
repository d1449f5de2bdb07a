//! Mirrors of stores in memory, and of small servers on this machine that answer as S3 does, good and bad ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod mirror;
mod s3;
mod support;
