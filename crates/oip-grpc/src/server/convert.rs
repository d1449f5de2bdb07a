//! Between the protocol's messages and its nouns.

use std::collections::BTreeMap;

use oip_types::{ModelMetadata, ModelRef, ServiceError, TensorMetadata};

use crate::proto::{ModelMetadataResponse, model_metadata_response};

/// A model by the names in a message; an empty version means that none is named.
pub(crate) fn model<'a>(name: &'a str, version: &'a str) -> Result<ModelRef<'a>, ServiceError> {
    ModelRef::new(name, Some(version))
}

/// Writes a model's metadata.
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
        // MLServer's clients read this field as something else and would fail on anything in it.
        properties: BTreeMap::new(),
    }
}
