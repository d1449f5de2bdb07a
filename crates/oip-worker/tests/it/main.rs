//! Models that misbehave in processes of their own, and processes that are no workers at all.
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

/// Not a test, but what the tests start: this program again, as a worker, as something that pretends to be one, or as a
/// server. The variable says what; without it nothing happens.
#[test]
fn another_process() {
    if let Ok(role) = std::env::var(support::ROLE) {
        support::play(&role);
    }
}
