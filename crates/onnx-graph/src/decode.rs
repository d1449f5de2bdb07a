//! Decodes a file into ONNX's protobuf messages.

use bytes::Bytes;
use prost::Message;

use crate::{
    Error, other_formats,
    proto::{DAMAGED, ModelProto},
    scan,
};

/// Decodes a file. Tensor contents remain slices of `content`.
///
/// # Errors
/// Returns [`Invalid`](crate::ErrorKind::Invalid) for a file that has another format (which the message
/// names), is truncated, has no graph, or has a structure that would take more than 1 GiB of memory when
/// decoded.
pub fn decode(content: &Bytes) -> Result<ModelProto, Error> {
    if let Some(explanation) = other_formats::explain(content) {
        return Err(Error::invalid(explanation));
    }
    scan::check(content)?;
    ModelProto::decode(content.clone())
        .map_err(|error| Error::invalid(DAMAGED).caused_by(error))
        .and_then(|model| {
            if model.graph.is_none() {
                return Err(Error::invalid(NO_GRAPH));
            }
            Ok(model)
        })
}

const NO_GRAPH: &str = "the file is not an ONNX model: it has no graph";
