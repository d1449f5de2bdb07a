//! Tests of writing files while system calls fail.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod faults;
