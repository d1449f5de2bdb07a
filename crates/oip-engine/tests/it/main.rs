//! The engine with backends made for tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batching;
mod caching;
mod configuration;
mod control;
mod loading;
mod pipelines;
mod polling;
mod repositories;
mod running;
mod support;
