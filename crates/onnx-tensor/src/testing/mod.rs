//! Builders and test doubles for tests of operators: nodes, cancelled runs, runs on several threads.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod cancelled;
mod nodes;
mod threads;

pub use cancelled::{Counter, while_cancelled, while_counted};
pub use nodes::{cube, node, with, with_text};
pub use threads::{bytes, expect_same, expect_same_with, floats};
