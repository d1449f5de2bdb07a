//! Tests of the crate from outside.

mod hostile;
mod model;
mod support;
