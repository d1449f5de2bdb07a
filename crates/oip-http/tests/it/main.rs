//! Tests of the REST side with an in-memory service, without a network.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bodies;
mod browsers;
mod copies;
mod description;
mod endpoints;
mod extensions;
mod failure_table;
mod failures;
mod forms;
mod generate;
mod leases;
mod limits;
mod panics;
mod routes;
mod support;
mod texts;
mod v1;
