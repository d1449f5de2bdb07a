use std::fmt::Display;

use crate::failure::Failure;

/// What the user gave does not fit the model.
pub(super) fn mismatch(message: impl Display) -> Failure {
    Failure::call("Mismatch", message.to_string())
}
