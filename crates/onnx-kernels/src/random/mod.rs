//! Random numbers.

pub(crate) mod random;

pub use random::random;
