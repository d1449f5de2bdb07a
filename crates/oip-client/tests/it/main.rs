//! Tests against this workspace's servers, and against scripted servers that imitate other products and slow,
//! broken or hostile servers. All tests use real sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(unix)]
mod blocking;
mod console_snippet;
mod extensions;
mod failing;
mod hostile;
mod other_servers;
mod retries;
mod round_trips;
#[cfg(target_os = "linux")]
mod shared_memory;
mod streams;
mod support;
mod tls;
