//! Fixtures by name, and how answers are compared.

use std::{
    fs,
    path::{Path, PathBuf},
};

use backend_onnx::OnnxBackend;
use bytes::Bytes;
use oip_service::{Backend, CancelToken, LoadContext, Model, ModelSource};
use oip_types::{
    InferOutput, InferRequest, InferResponse, Limits, ModelRef, ServiceError, TensorValue,
    rest::{decode_request, decode_response},
};
use tensor_core::{DType, Tensor};

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The names of all fixtures that have a file with this ending.
pub(crate) fn names(ending: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(fixtures())
        .unwrap()
        .filter_map(|entry| {
            Some(
                entry
                    .unwrap()
                    .file_name()
                    .to_str()?
                    .strip_suffix(ending)?
                    .to_owned(),
            )
        })
        .collect();
    names.sort();
    names
}

pub(crate) fn file(name: &str) -> Vec<u8> {
    fs::read(fixtures().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn load(content: impl Into<Bytes>) -> Result<Box<dyn Model>, ServiceError> {
    let source = ModelSource {
        name: "m".to_owned(),
        version: "1".to_owned(),
        path: PathBuf::from("m/1/model.onnx"),
        content: content.into(),
    };
    OnnxBackend::new().load(&source, &LoadContext::default())
}

pub(crate) fn model(name: &str) -> Box<dyn Model> {
    load(file(&format!("{name}.onnx"))).unwrap_or_else(|error| panic!("{name}: {}", error.report()))
}

/// A request for any model, from JSON.
pub(crate) fn request(json: impl Into<Bytes>) -> InferRequest {
    let model = ModelRef::new("m", None).unwrap();
    let decoded = decode_request(model, &json.into(), None, &Limits::default());
    decoded.unwrap().request
}

pub(crate) fn recorded_request(name: &str) -> InferRequest {
    request(file(&format!("{name}.request.json")))
}

pub(crate) fn recorded_response(name: &str) -> InferResponse {
    let json = file(&format!("{name}.response.json"));
    decode_response(&json.into(), None, &Limits::default()).unwrap()
}

/// What a model answers, checked as an engine checks requests and answers.
pub(crate) fn infer(model: &dyn Model, request: InferRequest) -> Result<Vec<InferOutput>, ServiceError> {
    model.metadata().check_request(&request)?;
    let outputs = model.infer(request, &CancelToken::new(None))?;
    model.metadata().pick_outputs(&[], outputs)
}

/// Holds an output against what it should be: FP32 with a little tolerance, everything else exactly.
pub(crate) fn compare(found: &InferOutput, expected: &InferOutput) -> Result<(), String> {
    let (name, found, wanted) = (&found.name, &found.value, &expected.value);
    if *name != expected.name || found.datatype() != wanted.datatype() || found.shape() != wanted.shape() {
        return Err(format!("expected {expected:?}, found {name} {found:?}"));
    }
    let (TensorValue::Fixed(found), TensorValue::Fixed(wanted)) = (found, wanted) else {
        return if found.raw() == wanted.raw() {
            Ok(())
        } else {
            Err(format!("{name}: expected {wanted:?}, found {found:?}"))
        };
    };
    let is_equal = match found.spec().dtype() {
        DType::F32 => {
            let (found, wanted) = (floats(found), floats(wanted));
            // Sums leave an error as large as their terms, even where the sum is small.
            let finite = wanted.iter().filter(|number| number.is_finite());
            let noise = 1e-5 * finite.fold(1.0f32, |most, number| most.max(number.abs()));
            let close = |(found, wanted): (&f32, &f32)| {
                found == wanted
                    || (found.is_nan() && wanted.is_nan())
                    || (found - wanted).abs() <= noise + 1e-4 * wanted.abs()
            };
            found.iter().zip(&wanted).all(close)
        }
        _ => found.bytes() == wanted.bytes(),
    };
    if is_equal {
        return Ok(());
    }
    Err(format!("{name}: expected {wanted}, found {found}"))
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}
