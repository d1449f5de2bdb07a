//! Tests with a real listener and hostile clients on raw sockets. Limits are short, about 0.2 s, to keep the
//! tests fast.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod connection_limits;
mod draining;
mod early_responses;
mod lanes;
mod one_port;
mod support;
mod timeouts;
mod tls;
#[cfg(unix)]
mod unix;
