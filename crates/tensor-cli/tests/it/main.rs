//! The program as its users meet it: commands, output, exit codes, files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod converting;
mod editing;
#[cfg(unix)]
mod killed;
mod looking;
mod support;
