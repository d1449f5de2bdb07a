//! Integration tests: the format's decisions, hostile files, round trips, files on disk.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod corpus;
mod decisions;
mod editing;
mod hostile;
mod on_disk;
mod support;
mod writing;
