//! End-to-end tests of the program: commands, output, exit codes, files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoints;
mod comparing;
mod converting;
mod editing;
#[cfg(feature = "client")]
mod inferring;
mod inspecting;
mod interrupting;
#[cfg(unix)]
mod killed;
#[cfg(feature = "client")]
mod measuring;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "client")]
mod replaying;
mod selection;
#[cfg(feature = "client")]
mod server;
#[cfg(feature = "client")]
mod servers;
#[cfg(unix)]
mod streams;
mod support;
#[cfg(feature = "remote")]
#[allow(dead_code, reason = "its other half is for the tests of tensor-remote")]
#[path = "../../../tensor-remote/tests/it/server.rs"]
mod web;
