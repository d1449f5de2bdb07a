//! Tests against this workspace's servers and against scripted ones that imitate other, slow, broken and
//! hostile servers. All use real sockets.
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
