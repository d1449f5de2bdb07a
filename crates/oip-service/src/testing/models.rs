//! The models of the in-memory service.

use oip_types::{DataType, ModelMetadata, ModelRef, TensorMetadata};
use tensor_core::DType;

/// Returns the name of the identity model for a datatype.
#[must_use]
pub fn identity(datatype: DataType) -> String {
    format!("identity_{}", datatype.name().to_ascii_lowercase())
}

/// Returns every datatype of the protocol.
pub fn datatypes() -> impl Iterator<Item = DataType> {
    DType::ALL
        .into_iter()
        .map(DataType::Fixed)
        .chain([DataType::Bytes])
}

pub(super) fn metadata(name: &str) -> Option<ModelMetadata> {
    let vector = |name: &str, datatype| TensorMetadata::new(name, datatype, &[-1]);
    let (inputs, outputs) = match name {
        "matrix" => (
            vec![
                TensorMetadata::new("a", DataType::FP32, &[-1, 2]),
                TensorMetadata::new("b", DataType::INT64, &[1]),
            ],
            vec![
                vector("sum", DataType::FP32),
                TensorMetadata::new("b", DataType::INT64, &[1]),
            ],
        ),
        "nan" => (
            vec![vector("x", DataType::FP32)],
            vec![TensorMetadata::new("y", DataType::FP32, &[3])],
        ),
        "not_text" => (
            vec![vector("x", DataType::BYTES)],
            vec![TensorMetadata::new("y", DataType::BYTES, &[1])],
        ),
        "minilm" => (
            vec![vector("text", DataType::BYTES)],
            vec![
                TensorMetadata::new("embedding", DataType::FP32, &[-1, 2]),
                vector("token_count", DataType::INT64),
            ],
        ),
        "reranker" => (
            vec![
                vector("text", DataType::BYTES),
                vector("text_pair", DataType::BYTES),
            ],
            vec![vector("score", DataType::FP32)],
        ),
        "sentiment" => (
            vec![
                vector("text", DataType::BYTES),
                vector("text_pair", DataType::BYTES).optional(),
            ],
            vec![
                TensorMetadata::new("scores", DataType::FP32, &[-1, 2]),
                TensorMetadata::new("labels", DataType::BYTES, &[-1, 2]).optional(),
            ],
        ),
        "slow" | "failing" | "busy" => (
            vec![vector("x", DataType::FP32)],
            vec![vector("y", DataType::FP32)],
        ),
        _ => {
            let forms = [("_scalar", &[][..]), ("_matrix", &[-1, -1]), ("", &[-1])];
            let (name, shape) = forms
                .into_iter()
                .find_map(|(form, shape)| Some((name.strip_suffix(form)?, shape)))?;
            let datatype = datatypes().find(|datatype| identity(*datatype) == name)?;
            let tensor = |name: &str| TensorMetadata::new(name, datatype, shape);
            (vec![tensor("x")], vec![tensor("y")])
        }
    };
    let versions = if name == "matrix" {
        vec!["1".to_owned(), "2".to_owned()]
    } else {
        vec![]
    };
    Some(ModelMetadata::new(name, "test_test", inputs, outputs).with_versions(versions))
}

/// Returns the metadata of a model, if it has the named version.
pub(super) fn find(model: ModelRef<'_>) -> Option<ModelMetadata> {
    let has_version = |found: &ModelMetadata| {
        model
            .version()
            .is_none_or(|version| found.versions.iter().any(|known| known == version))
    };
    metadata(model.name()).filter(has_version)
}
