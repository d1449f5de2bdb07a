//! The program as its users meet it: commands, output, exit codes, files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoints;
mod converting;
#[cfg(unix)]
mod editing;
#[cfg(feature = "client")]
mod inferring;
#[cfg(unix)]
mod killed;
mod looking;
#[cfg(feature = "client")]
mod measuring;
#[cfg(feature = "client")]
mod server;
#[cfg(unix)]
mod streams;
mod support;
