//! Helpers that build tensor files, load the files as models, and create requests.

use std::path::Path;

use backend_tensors::TensorsBackend;
use bytes::Bytes;
use fmt_core::{Plan, PlannedEntry};
use oip_model::{Backend, CancelToken, LoadContext, Model, ModelSource};
use oip_types::{InferOutput, InferRequest, ModelRef, ServiceError};
use tensor_core::{Shape, Tensor};

/// Builds a file of dense tensors; the suffix of the name determines the format.
pub(crate) fn file(name: &str, tensors: &[(&str, &Tensor)]) -> Bytes {
    let entries = tensors
        .iter()
        .map(|(name, tensor)| PlannedEntry::dense(*name, tensor.spec().clone()));
    let plan = Plan {
        entries: entries.collect(),
        ..Plan::default()
    };
    let format = tensor_files::format_of_path(name.as_ref()).unwrap();
    let mut out = Vec::new();
    let mut writer = format.create(Box::new(&mut out), plan).unwrap();
    tensors
        .iter()
        .for_each(|(_, tensor)| writer.write(tensor.bytes()).unwrap());
    writer.finish().unwrap();
    out.into()
}

pub(crate) fn load_with(
    backend: &TensorsBackend,
    path: &Path,
    content: Bytes,
) -> Result<Box<dyn Model>, ServiceError> {
    let source = ModelSource::new("m", "1", path.to_owned(), content);
    backend.load(&source, &LoadContext::default())
}

/// Loads a model from a file in memory; its path is `name` in a directory that does not exist.
pub(crate) fn load(name: &str, content: Bytes) -> Result<Box<dyn Model>, ServiceError> {
    load_with(&TensorsBackend::new(), &Path::new("/nowhere").join(name), content)
}

/// Loads a safetensors file with `embed` FP32[4, 2], `ids` INT64[3] and `scale` FP64[].
pub(crate) fn model() -> Box<dyn Model> {
    model_with(&TensorsBackend::new())
}

pub(crate) fn model_with(backend: &TensorsBackend) -> Box<dyn Model> {
    let tensors = [
        ("embed", &embed()),
        ("ids", &vector(&[7, 8, 9])),
        ("scale", &Tensor::scalar(0.5f64)),
    ];
    let content = file("model.safetensors", &tensors);
    load_with(backend, "/nowhere/model.safetensors".as_ref(), content).unwrap()
}

/// Returns a tensor with the rows `[0, 0.5]`, `[1, 1.5]` and so on.
pub(crate) fn embed() -> Tensor {
    let elements = (0..8u8).map(|element| f32::from(element) / 2.0).collect();
    Tensor::from_vec(Shape::new(&[4, 2]).unwrap(), elements).unwrap()
}

pub(crate) fn vector(elements: &[i64]) -> Tensor {
    Tensor::from_vec(Shape::vector(elements.len() as u64), elements.to_vec()).unwrap()
}

pub(crate) fn request() -> InferRequest {
    InferRequest::new(ModelRef::new("m", None).unwrap())
}

/// Runs a model like the engine: checks the request, runs it, and selects the outputs.
pub(crate) fn run(model: &dyn Model, request: InferRequest) -> Result<Vec<InferOutput>, ServiceError> {
    model.metadata().check_request(&request)?;
    let requested = request.outputs.clone();
    let outputs = model.infer(request, &CancelToken::new(None))?;
    model.metadata().pick_outputs(&requested, outputs)
}

/// Returns the names and tensors of a response.
pub(crate) fn tensors(outputs: Vec<InferOutput>) -> Vec<(String, Tensor)> {
    let fixed = |output: InferOutput| (output.name, output.value.as_fixed().unwrap().clone());
    outputs.into_iter().map(fixed).collect()
}
