//! Response bodies without tensors: metadata and errors.

use bytes::Bytes;
use serde::Serialize;

use crate::ServiceError;

/// Encodes a value without tensors, such as [`ModelMetadata`](crate::ModelMetadata), as JSON.
///
/// # Panics
/// When the value's `Serialize` fails, or it contains a map whose keys are not strings. Neither happens with
/// the types of this crate.
#[must_use]
pub fn json_body<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value)
        .expect("protocol types have string keys and cannot fail")
        .into()
}

/// Returns the body of every error response: `{"error": "<message>"}`.
///
/// ```
/// use oip_types::{ServiceError, rest};
/// let error = ServiceError::invalid("expected \"data\"");
/// assert_eq!(rest::error_body(&error), r#"{"error":"expected \"data\""}"#);
/// ```
#[must_use]
pub fn error_body(error: &ServiceError) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a> {
        error: &'a str,
    }
    json_body(&Body {
        error: error.message(),
    })
}

/// Serializes [`DataType`](crate::DataType) by its protocol name.
pub(crate) mod datatype_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::DataType;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
    pub(crate) fn serialize<S: Serializer>(datatype: &DataType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(datatype.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataType, D::Error> {
        let name = String::deserialize(deserializer)?;
        DataType::from_name(&name).map_err(D::Error::custom)
    }
}

/// Serializes [`DataType`](crate::DataType) as its name in model configurations.
pub(crate) mod config_datatype {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use tensor_core::QuotedName;

    use crate::DataType;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
    pub(crate) fn serialize<S: Serializer>(datatype: &DataType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&datatype.config_name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || {
            let message = format!(
                "expected a datatype such as TYPE_FP32, found {}",
                QuotedName(&name)
            );
            D::Error::custom(message)
        };
        DataType::from_config_name(&name).ok_or_else(unknown)
    }
}

/// Serializes [`ShapePattern`](crate::ShapePattern) as a list of numbers, -1 for free dimensions.
pub(crate) mod pattern_dims {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::ShapePattern;

    pub(crate) fn serialize<S: Serializer>(pattern: &ShapePattern, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(pattern.to_wire())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ShapePattern, D::Error> {
        Vec::deserialize(deserializer).map(|dims| ShapePattern::from_wire(&dims))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, ModelMetadata, TensorMetadata};

    #[test]
    fn model_configurations_have_tritons_form() {
        let written = r#"{"name":"m","max_batch_size":8,"input":[{"name":"x","data_type":"TYPE_FP32","dims":[4]}],
            "output":[{"name":"y","data_type":"TYPE_STRING","dims":[-1],"label_filename":"labels.txt"}],
            "version_policy":{"specific":{"versions":[1,3]}},"instance_group":[{"count":2,"kind":"KIND_CPU"}],
            "dynamic_batching":{"priority_queue_policy":{"1":{"timeout_action":"DELAY"}}},
            "model_warmup":[{"name":"w","inputs":{"x":{"data_type":"TYPE_FP32","dims":[4],"zero_data":true}}}],
            "optimization":{"unknown":1}}"#;
        let config: crate::ModelConfig = serde_json::from_str(written).unwrap();
        assert_eq!(config.input[0].data_type, DataType::FP32);
        assert_eq!(config.output[0].data_type, DataType::BYTES);
        assert_eq!(
            config
                .dynamic_batching
                .as_ref()
                .unwrap()
                .priority_queue_policy
                .len(),
            1
        );
        let shown: serde_json::Value = serde_json::from_slice(&json_body(&config)).unwrap();
        assert_eq!(shown["version_policy"]["specific"]["versions"][1], 3);
        assert_eq!(shown["model_warmup"][0]["inputs"]["x"]["zero_data"], true);
        assert_eq!(shown["input"][0]["format"], "FORMAT_NONE");
        assert_eq!(
            serde_json::from_value::<crate::ModelConfig>(shown).unwrap(),
            config
        );
        for broken in [
            r#"{"max_batch_size":-1}"#,
            r#"{"input":[{"name":"x","data_type":"TYPE_FP31"}]}"#,
        ] {
            assert!(serde_json::from_str::<crate::ModelConfig>(broken).is_err());
        }
    }

    #[test]
    fn model_metadata_has_the_protocols_form() {
        let metadata = ModelMetadata::new(
            "m",
            "onnx_onnxv1",
            vec![TensorMetadata::new("x", DataType::FP32, &[-1, 64])],
            vec![TensorMetadata::new("y", DataType::BYTES, &[-1])],
        )
        .with_versions(["1"]);
        let json = json_body(&metadata);
        // The wire form can express neither optional inputs nor a variable number of leading dimensions.
        let mut optional = metadata.clone();
        optional.inputs[0].optional = true;
        optional.inputs[0].shape = crate::ShapePattern::with_any_leading(vec![Some(64)]);
        assert_eq!(json_body(&optional), json);
        assert_eq!(
            json,
            r#"{"name":"m","versions":["1"],"platform":"onnx_onnxv1","inputs":[{"name":"x","datatype":"FP32","shape":[-1,64]}],"outputs":[{"name":"y","datatype":"BYTES","shape":[-1]}]}"#
        );
        assert_eq!(serde_json::from_slice::<ModelMetadata>(&json).unwrap(), metadata);
        let minimal: ModelMetadata =
            serde_json::from_str(r#"{"name":"m","inputs":[],"outputs":[]}"#).unwrap();
        assert!(minimal.versions.is_empty());
    }
}
