//! X
pub mod attention;
pub mod conv;
pub mod elementwise;
pub mod gather;
pub mod helpers;
pub mod image;
#[cfg(test)]
pub(crate) mod made_nodes;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod quant;
pub mod random;
pub mod reduce;
pub mod rnn;
pub mod shape;
pub mod signal;
