//! Tests for versions 1.x and 2.x: the corpora, files of the Python packages, and damaged files.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cases;
mod hostile;
mod memory;
mod support;
mod writing;
mod written_by_ztensor;
