//! The error for a node that is invalid in every runtime, and a check for the other errors of kernels, which
//! have a typed cause.

use std::fmt;

use onnx_graph::Error as FileError;
use onnx_tensor::{
    faults::{BadInput, Limit, Misfit, NoRoom, OutOfTime, Refusal, Unsupported},
    prelude::*,
};

/// Returns whether a cause of the error has a type that classifies the error, such as [`Refusal`] or
/// [`NoRoom`].
pub(crate) fn has_cause(error: &Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Refusal>()
            || cause.is::<Limit>()
            || cause.is::<Unsupported>()
            || cause.is::<BadInput>()
            || cause.is::<Misfit>()
            || cause.is::<NoRoom>()
            || cause.is::<OutOfTime>()
    })
}

/// Creates the error for a node that is invalid in every runtime.
pub(crate) fn invalid(reason: impl fmt::Display) -> FileError {
    FileError::invalid(format!(
        "{reason}; the node is invalid in every runtime, so export the model again"
    ))
}
