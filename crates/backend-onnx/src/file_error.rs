//! Errors about a model's file, as clients see them.

use oip_types::ServiceError;
use onnx_graph::{Error, ErrorKind};

use crate::tract_limit::TractLimit;

/// The error for clients: the same message, and [`TractLimit`] as the cause where ONNX Runtime may run the file.
pub(crate) fn refusal(error: Error) -> ServiceError {
    let refusal = ServiceError::invalid(error.to_string());
    match error.kind() {
        ErrorKind::Invalid => match error.into_source() {
            Some(source) => refusal.caused_by(source),
            None => refusal,
        },
        ErrorKind::Unsupported => refusal.caused_by(TractLimit::Unsupported),
        ErrorKind::UnsupportedAnywhere => refusal.caused_by(TractLimit::Everybodys),
    }
}
