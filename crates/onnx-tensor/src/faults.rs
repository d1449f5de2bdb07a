//! Why an operator does not compute something: the model's fault, ours, the request's, or that of the machine.

use std::fmt;

use crate::prelude::*;

/// Why something is not computed, in words for the model's author.
#[derive(Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Why something is not computed although the model is good: another runtime may be able to.
#[derive(Debug)]
pub struct Limit(pub String);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Limit {}

/// Why something is not computed although the model is good, whatever sizes its inputs have.
#[derive(Debug)]
pub enum Unsupported {
    /// ONNX Runtime computes it.
    Here(String),
    /// ONNX Runtime does not compute it either.
    Anywhere(String),
}

impl Unsupported {
    /// Refuses a datatype where ONNX Runtime has FP64 beside the ones that are computed here, and no others.
    pub fn but_for_fp64(element_type: ElementType, reason: &str) -> Self {
        match element_type {
            ElementType::F64 => Self::Here(reason.to_owned()),
            _ => Self::Anywhere(reason.to_owned()),
        }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Here(reason) | Self::Anywhere(reason)) = self;
        f.write_str(reason)
    }
}

impl std::error::Error for Unsupported {}

impl From<String> for Unsupported {
    fn from(reason: String) -> Self {
        Self::Here(reason)
    }
}

/// The time for preparing a model is over. A machine that is less busy may prepare it in time.
#[derive(Debug)]
pub struct OutOfTime;

impl fmt::Display for OutOfTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("preparing the model takes too long")
    }
}

impl std::error::Error for OutOfTime {}

/// An error in the values of an input, found while a model runs.
#[derive(Debug)]
pub struct BadInput(pub String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// Ends with [`BadInput`] unless a condition holds that the sizes of a request decide.
#[macro_export]
macro_rules! ensure_input {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::faults::BadInput(format!($($text)+)).into());
        }
    };
}
pub use crate::ensure_input;

/// A value that there is no memory for now.
#[derive(Debug)]
pub struct NoRoom(pub String);

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoRoom {}

/// Sizes of inputs that do not fit the model, or each other.
#[derive(Clone, Copy, Debug)]
pub enum Misfit {
    /// A value between two operators would have this dimension, which is below zero.
    Dimension(i64),
    /// A window reaches so far beyond its image, padding included.
    Window(i64),
    /// Two factors of a product of which one has so much more than the other in a dimension that they share.
    Factors(i64),
    /// Two values of an operator have these sizes in one dimension.
    Sizes(i64, i64),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dimension(dim) => write!(
                f,
                "the inputs are too small for the model: a value between two operators would have a dimension of {dim}"
            ),
            Self::Window(beyond) => write!(
                f,
                "the inputs are too small for the model: a window of a convolution or pool reaches {beyond} beyond its padded image"
            ),
            Self::Factors(difference) => write!(
                f,
                "the inputs do not fit together: two factors of a product differ by {} in a dimension that they share",
                difference.unsigned_abs()
            ),
            Self::Sizes(one, other) => write!(
                f,
                "the inputs do not fit together: two values of an operator have {one} and {other} in the same dimension, expected equal \
                 sizes or 1"
            ),
        }
    }
}

impl std::error::Error for Misfit {}
