//! ONNX's format as generated from `proto/onnx.proto`, and how a file is read into it.

use bytes::Bytes;
use oip_types::ServiceError;
use prost::Message;

use crate::{other_formats, scan};

#[allow(
    clippy::all,
    clippy::doc_markdown,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
mod generated {
    include!("generated/onnx.rs");
}

pub(crate) use generated::*;

/// Reads a file. Contents of tensors stay slices of it.
pub(crate) fn decode(content: &Bytes) -> Result<ModelProto, ServiceError> {
    if content.is_empty() {
        return Err(ServiceError::invalid("the file is empty"));
    }
    if let Some(explanation) = other_formats::explain(content) {
        return Err(ServiceError::invalid(explanation));
    }
    scan::check(content)?;
    ModelProto::decode(content.clone())
        .map_err(|error| ServiceError::invalid(DAMAGED).caused_by(error))
        .and_then(|model| {
            if model.graph.is_none() {
                return Err(ServiceError::invalid(NO_GRAPH));
            }
            Ok(model)
        })
}

pub(crate) const DAMAGED: &str = "the file is no ONNX model, or it is damaged or cut off";
const NO_GRAPH: &str = "the file is no ONNX model: it has no graph";
