//! Tests the engine with backends made for the tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batching;
mod caching;
mod calls;
mod configuration;
mod control;
mod embedded;
mod functions;
mod hanging_models;
mod in_place;
mod joining;
mod loading;
mod memory;
mod pipelines;
mod polling;
mod races;
mod repositories;
mod running;
mod streams;
mod support;
mod upstream;
