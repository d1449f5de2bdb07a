//! Tests models from `tests/fixtures`, which `make_fixtures.py` generates, and damaged copies of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod classes;
mod damaged;
mod external;
mod extremes;
mod fixtures;
mod images;
mod independence;
mod onnx_runtime;
mod providers;
mod refusals;
mod runs;
mod sizes;
mod steps;
mod support;
mod values;
