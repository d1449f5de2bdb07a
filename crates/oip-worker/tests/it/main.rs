//! Models that misbehave in separate processes, and processes that are not workers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
mod begun;
#[cfg(target_os = "linux")]
mod calls;
mod crashes;
mod hangs;
mod hostile;
mod life;
mod memory;
#[cfg(target_os = "linux")]
mod places;
mod support;

/// Not a test, but the entry point of processes that the tests start: this program as a worker, as something
/// that pretends to be one, or as a server. The environment variable selects which; without it nothing
/// happens.
#[test]
fn another_process() {
    if let Ok(role) = std::env::var(support::ROLE) {
        support::play(&role);
    }
}
