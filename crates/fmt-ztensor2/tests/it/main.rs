//! Versions 1.x and 2.x: the corpora, files of the Python packages, and files that were good before something happened.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cases;
mod hostile;
mod memory;
mod real;
mod support;
mod writing;
