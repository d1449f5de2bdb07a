//! Errors of operators, by cause: the model, this runtime, the request, or the machine.

use std::fmt;

use crate::prelude::*;

/// The model is invalid. The message tells the model's author what to fix.
#[derive(Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// The model is valid, but exceeds a limit of this runtime; another runtime may support it.
#[derive(Debug)]
pub struct Limit(pub String);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Limit {}

/// Converts the attribute `name` into a size, and checks the limit of 2^24 - 1.
///
/// # Errors
/// Returns [`Refusal`] if it is negative, and [`Limit`] if it is beyond the limit.
pub fn below_limit(name: &str, number: i64) -> Result<usize> {
    const LIMIT: i64 = (1 << 24) - 1;
    match number {
        0..=LIMIT => Ok(number as usize),
        ..0 => bail!(Refusal(format!(
            "the attribute '{name}' is {number}, expected 0 or more"
        ))),
        _ => bail!(Limit(format!(
            "the attribute '{name}' is {number}, beyond the limit of {LIMIT}"
        ))),
    }
}

/// The model is valid, but this runtime does not support it for any sizes of inputs.
#[derive(Debug)]
pub enum Unsupported {
    /// ONNX Runtime supports the model, and this runtime does not.
    Here(String),
    /// Neither this runtime nor ONNX Runtime supports the model.
    Anywhere(String),
}

impl Unsupported {
    /// Creates the error for an unsupported datatype of an operator, where FP64 is the only type that ONNX
    /// Runtime supports and this runtime does not.
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

/// Creates the error for an element type that no row of the operators' table supports.
pub fn unsupported(element_type: ElementType) -> Error {
    Unsupported::Here(format!("is not supported for inputs of {element_type:?}")).into()
}

/// Preparing the model has exceeded its time limit. A less busy machine may succeed.
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

/// Returns [`BadInput`] from the surrounding function unless a condition on the sizes of a request holds.
#[macro_export]
macro_rules! ensure_input {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::faults::BadInput(format!($($text)+)).into());
        }
    };
}
pub use crate::ensure_input;

/// The machine does not have enough free memory for a value.
#[derive(Debug)]
pub struct NoRoom(pub String);

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoRoom {}

/// Sizes of inputs that do not fit the model, or do not match each other.
#[derive(Clone, Copy, Debug)]
pub enum Misfit {
    /// An intermediate value would have this negative dimension.
    Dimension(i64),
    /// A window extends this far beyond its image, including padding.
    Window(i64),
    /// The size of a shared dimension differs by this much between the two factors of a product.
    Factors(i64),
    /// Two inputs of an operator have these sizes in one dimension.
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

/// Formats `bytes` with a binary unit, for messages.
pub fn gib(bytes: u64) -> String {
    match bytes {
        u64::MAX => "a byte length that overflows".to_owned(),
        bytes if bytes < 1 << 20 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        bytes if bytes < 1 << 30 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} GiB", bytes >> 30),
    }
}
