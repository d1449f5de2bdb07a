//! Operators for elementwise functions, comparisons and casts.

pub(crate) mod activation;
pub mod approximations;
pub(crate) mod binary;
pub(crate) mod cast;
pub(crate) mod clip;
pub(crate) mod compare;
pub(crate) mod functions;
pub(crate) mod integers;
pub(crate) mod operator;
pub(crate) mod pairs;
pub(crate) mod power;
mod powers;
pub(crate) mod prelu;
pub(crate) mod remainder;
pub mod transcendental;
mod trigonometry;
pub mod vector;

pub use activation::Activation;
pub use approximations::coarse;
pub use binary::broadcast;
pub use cast::{cast, cast_like, convert};
pub use clip::clip_of;
pub use compare::compare;
pub use functions::{function, truth};
pub use integers::{bits, bitwise_not};
pub use operator::{activation_of, is_sum};
pub use pairs::pair;
pub use power::{bit_shift, mean, power};
pub use prelu::prelu;
pub use remainder::remainder;
