//! TODO-DOC random

pub(crate) mod random;

pub use random::random;
