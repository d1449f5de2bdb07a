//! Files of all formats: detected, opened, converted, verified, compared.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod comparing;
mod converting;
mod detecting;
mod shards;
mod support;
