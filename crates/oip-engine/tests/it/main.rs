//! The engine with backends made for tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batching;
mod loading;
mod repositories;
mod running;
mod support;
