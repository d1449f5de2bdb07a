use std::fmt::Display;

use crate::failure::Failure;

/// The user's inputs do not fit the model.
pub(super) fn mismatch(message: impl Display) -> Failure {
    Failure::call("Mismatch", message.to_string())
}
