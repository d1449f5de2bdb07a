//! The error for inputs that the model does not accept.

use std::fmt::Display;

use crate::failure::Failure;

/// Creates the error for inputs that do not fit the model.
pub(super) fn mismatch(message: impl Display) -> Failure {
    Failure::call("Mismatch", message.to_string())
}
