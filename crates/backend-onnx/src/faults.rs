//! Why an operator does not compute something, as the errors that travel through tract: the model's fault, ours, the
//! request's, or that of the machine.

use std::fmt;

use oip_types::ServiceError;

/// Why something is not computed, in words for the model's author.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Why something is not computed although the model is good: another runtime may be able to.
#[derive(Debug)]
pub(crate) struct Limit(pub(crate) String);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Limit {}

/// An error in the values of an input, found while a model runs.
#[derive(Debug)]
pub(crate) struct BadInput(pub(crate) String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// A value that there is no memory for now.
#[derive(Debug)]
pub(crate) struct NoRoom(pub(crate) String);

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoRoom {}

/// Inputs that are too small for a model: a value between two operators would have this dimension.
#[derive(Debug)]
pub(crate) struct TooSmall(pub(crate) i64);

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(dim) = self;
        write!(
            f,
            "the inputs are too small for the model: a value between two operators would have a dimension of {dim}"
        )
    }
}

impl std::error::Error for TooSmall {}

/// Whether [`TooSmall`] is why a plan or a run failed.
pub(crate) fn is_too_small(error: &ServiceError) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<TooSmall>)
}
