//! Tests of the zTensor reader and writer.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod accepted;
mod corpus;
mod decisions;
mod disk;
mod documents;
mod faults;
mod memory;
mod mutants;
mod rejected;
mod round_trips;
mod support;
