//! Tests models that misbehave in separate processes, and processes that are not workers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
mod calls;
mod crashes;
#[cfg(target_os = "linux")]
mod handed_over;
mod hangs;
mod hostile;
mod life;
mod memory;
mod support;
#[cfg(target_os = "linux")]
mod tensor_locations;

/// This test is the entry point of the processes that the other tests start: a worker, a program that
/// pretends to be a worker, or a server. The environment variable selects the role. Without it, the test does
/// nothing.
#[test]
fn another_process() {
    if let Ok(role) = std::env::var(support::ROLE) {
        support::play(&role);
    }
}
