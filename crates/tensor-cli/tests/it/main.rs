//! The program as its users meet it: commands, output, exit codes, files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod converting;
mod editing;
mod looking;
#[cfg(feature = "client")]
mod serving;
mod support;
