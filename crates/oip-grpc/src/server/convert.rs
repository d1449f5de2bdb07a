//! Converts between messages and `oip_types`.

use std::collections::BTreeMap;

use oip_types::{ModelMetadata, ModelRef, ServiceError, TensorMetadata};

use crate::proto::{ModelMetadataResponse, model_metadata_response};

/// Returns a model reference for the names in a message; an empty version means none.
pub(crate) fn model<'a>(name: &'a str, version: &'a str) -> Result<ModelRef<'a>, ServiceError> {
    ModelRef::new(name, Some(version))
}

/// Encodes a model's metadata.
pub(crate) fn write_metadata(metadata: &ModelMetadata) -> ModelMetadataResponse {
    let tensor = |tensor: &TensorMetadata| model_metadata_response::TensorMetadata {
        name: tensor.name.clone(),
        datatype: tensor.datatype.name().to_owned(),
        shape: tensor.shape.to_wire().collect(),
    };
    ModelMetadataResponse {
        name: metadata.name.clone(),
        versions: metadata.versions.clone(),
        platform: metadata.platform.clone(),
        inputs: metadata.inputs.iter().map(tensor).collect(),
        outputs: metadata.outputs.iter().map(tensor).collect(),
        // MLServer's clients interpret this field differently and fail if it is not empty.
        properties: BTreeMap::new(),
    }
}
