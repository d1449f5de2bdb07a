//! Tests with a real listener and hostile clients on raw sockets. Limits are short, about 0.2 s, to keep the
//! tests fast.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod crowds;
mod draining;
mod either;
mod lanes;
mod patience;
mod support;
mod tls;
#[cfg(unix)]
mod unix;
