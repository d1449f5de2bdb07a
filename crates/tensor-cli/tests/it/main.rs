//! The program as its users meet it: commands, output, exit codes, files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod converting;
mod editing;
#[cfg(unix)]
mod killed;
#[cfg(feature = "client")]
mod inferring;
mod looking;
#[cfg(feature = "client")]
mod measuring;
#[cfg(feature = "client")]
mod server;
mod support;
