//! Adds suggestions to the error for a model that the built-in runtime does not support.

use std::{error::Error, fmt};

use oip_types::ServiceError;
use onnx_graph::{proto::ModelProto, structure};

use onnx_graph::other_runtime;

/// The cause of an error for a valid file that exceeds what the built-in runtime supports.
#[derive(Debug)]
pub(crate) enum RuntimeLimit {
    /// The built-in runtime does not support an operator, an attribute or a datatype.
    Unsupported,
    /// Neither the built-in runtime nor ONNX Runtime supports the model.
    Everybodys,
    /// The built-in runtime does not support the model, for the reason in this error.
    Unexplained(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for RuntimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the built-in runtime does not support this")
    }
}

impl Error for RuntimeLimit {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unexplained(cause) => Some(cause.as_ref()),
            Self::Unsupported | Self::Everybodys => None,
        }
    }
}

/// The beginning of the hint that a refusal contains if ONNX Runtime can run the model.
pub(crate) const OTHER_RUNTIME: &str = "ONNX Runtime can run this: ";

/// Adds suggestions to an error whose only cause is a [`RuntimeLimit`]: ONNX Runtime if it supports all
/// operators of the model (`how` explains how to enable it), and a different export.
pub(crate) fn with_ways_out(error: ServiceError, model: &ModelProto, how: &str) -> ServiceError {
    let limit = error.source().and_then(<dyn Error>::downcast_ref::<RuntimeLimit>);
    let Some(limit) = limit.filter(|_| structure::check(model).is_ok()) else {
        return error;
    };
    let missing = match limit {
        RuntimeLimit::Everybodys => Some(String::new()),
        _ => other_runtime::missing(model),
    };
    let mut message = error.message().to_owned();
    message.push_str("; ");
    match missing {
        None => {
            message.push_str(OTHER_RUNTIME);
            message.push_str(how);
            message.push_str("; or ");
        }
        Some(node) if message.starts_with(&node) => {
            message.push_str("ONNX Runtime does not support it either; ");
        }
        Some(node) => {
            message.push_str("ONNX Runtime does not support ");
            message.push_str(&node);
            message.push_str("; ");
        }
    }
    message.push_str(match uses_own(model) {
        true => {
            "export the model without ONNX Runtime's own operators, before its optimizer or quantizer rewrote it"
        }
        false => "export the model with other operators, or for an operator set from 11 to 25",
    });
    ServiceError::invalid(message).caused_by(error)
}

/// Returns whether a model has contrib operators, which only ONNX Runtime defines.
fn uses_own(model: &ModelProto) -> bool {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    nodes.into_iter().any(|node| node.domain == "com.microsoft")
}
