//! The error for a node that is invalid in every runtime, and how to tell it from other errors of kernels.

use std::fmt;

use onnx_graph::Error as FileError;
use onnx_tensor::{
    faults::{BadInput, Limit, Misfit, NoRoom, OutOfTime, Refusal, Unsupported},
    prelude::*,
};

/// Returns whether a typed cause says whose fault the error is.
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
