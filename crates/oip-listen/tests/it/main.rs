//! A real listener and hostile clients on raw sockets. The limits are a fifth of a second or so, to be quick.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod crowds;
mod draining;
mod either;
mod lanes;
mod patience;
mod support;
#[cfg(unix)]
mod unix;
