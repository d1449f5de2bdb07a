//! How a file becomes the messages of ONNX's format.

use bytes::Bytes;
use oip_types::ServiceError;
use prost::Message;

use crate::{
    other_formats,
    proto::{DAMAGED, ModelProto},
    scan,
};

/// Reads a file. Contents of tensors stay slices of it.
pub(crate) fn model(content: &Bytes) -> Result<ModelProto, ServiceError> {
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

const NO_GRAPH: &str = "the file is no ONNX model: it has no graph";
