//! The client against this workspace's servers, and against servers made up here: those of others, slow, broken and
//! hostile ones. All of them on real sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(unix)]
mod blocking;
mod console_snippet;
mod extensions;
mod failing;
mod hostile;
mod others;
mod retries;
mod round_trips;
#[cfg(target_os = "linux")]
mod shared_memory;
mod streams;
mod support;
mod tls;
