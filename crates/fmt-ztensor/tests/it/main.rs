//! Tests of the zTensor reader and writer.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod accepted;
mod corpus;
mod rejected;
mod support;
