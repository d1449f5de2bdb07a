//! Tests requests of all sizes, valid and hostile, to one model.

use std::{sync::Arc, time::Instant};

use backend_onnx::OnnxBackend;
use oip_model::{Backend, InputDims, LoadContext, Model};
use oip_types::{ErrorCode, InferRequest, ModelConfig, ModelRef};
use tensor_core::{Shape, Tensor};

use crate::support::{Runtime, file, infer, source};

/// Builds a request with an image of ones.
fn image(dims: &[u64]) -> InferRequest {
    let shape = Shape::new(dims).unwrap();
    let ones = vec![1f32; shape.element_count() as usize];
    let tensor = Tensor::from_vec(shape, ones).unwrap();
    InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", tensor)
}

fn refusal(model: &dyn Model, dims: &[u64]) -> String {
    let error = infer(model, image(dims)).unwrap_err();
    assert_eq!(
        error.code(),
        ErrorCode::InvalidArgument,
        "{dims:?}: {}",
        error.report()
    );
    error.to_string()
}

/// Checks that a model that only accepts even sizes refuses odd ones with a client error each time, and still
/// accepts other requests.
#[test]
fn a_shape_that_the_model_cannot_take_is_the_clients_mistake() {
    let model = Runtime::BuiltIn.model("halved_and_doubled");
    for _ in 0..2 {
        let message = refusal(&*model, &[1, 3, 5, 6]);
        let expected = "the model cannot be run with these inputs: node 'y' (Concat): cannot concatenate FP32 \
                        [1, 3, 5, 6] and FP32 [1, 3, 6, 6] along axis 1";
        assert!(message.contains(expected), "{message}");
        let outputs = infer(&*model, image(&[1, 3, 4, 6])).unwrap();
        assert_eq!(outputs[0].value.shape().dims(), [1, 6, 4, 6]);
    }
}

/// Checks that huge dimensions next to a dimension of 0 are refused, since operators would allocate memory
/// for them.
#[test]
fn large_dimensions_beside_an_empty_one_are_refused() {
    let model = Runtime::BuiltIn.model("halved_and_doubled");
    let started = Instant::now();
    for dims in [[0, 3, 1 << 30, 1 << 30], [0, 3, u64::MAX, 2], [1, 3, 0, 1 << 40]] {
        let message = refusal(&*model, &dims);
        assert!(message.contains("the limit is 256 MiB"), "{message}");
    }
    assert!(started.elapsed().as_secs() < 60);
}

#[test]
fn many_shapes_are_answered() {
    let model = Runtime::BuiltIn.model("halved_and_doubled");
    for round in 0..2 {
        for height in 1..50 {
            let dims = [1, 3, 2 * height, 2];
            let outputs = infer(&*model, image(&dims)).unwrap();
            assert_eq!(
                outputs[0].value.shape().dims(),
                [1, 6, 2 * height, 2],
                "round {round}"
            );
        }
    }
}

/// Checks that the metadata fixes only the dimensions that are equal for all requests.
#[test]
fn metadata_fixes_only_what_the_file_does() {
    let model = Runtime::BuiltIn.model("halved_and_doubled");
    let metadata = model.metadata();
    assert_eq!(metadata.inputs[0].shape.dims(), [None, Some(3), None, None]);
    assert_eq!(metadata.outputs[0].shape.dims(), [None, Some(6), None, None]);
}

/// Builds a configuration of the input 'x'.
fn configured(max_batch_size: u32, dims: &[i64]) -> LoadContext {
    let config = ModelConfig {
        max_batch_size,
        ..ModelConfig::default()
    };
    let dims = InputDims::from([("x".to_owned(), dims.to_vec())]);
    LoadContext::default()
        .with_config(Arc::new(config))
        .with_input_dims(Arc::new(dims))
}

#[test]
fn dims_of_the_configuration_fix_what_the_file_leaves_free() {
    let context = configured(8, &[3, 4, -1]);
    let loaded = OnnxBackend::new().load(&source(file("halved_and_doubled.onnx")), &context);
    let model = loaded.unwrap();
    assert_eq!(
        model.metadata().inputs[0].shape.dims(),
        [None, Some(3), Some(4), None]
    );
    let outputs = infer(&*model, image(&[2, 3, 4, 2])).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [2, 6, 4, 2]);
}

/// Checks a model that accepts only one width, which follows from its `Reshape` and is not in the metadata.
#[test]
fn a_model_of_one_size_refuses_others() {
    let load = |context: &LoadContext| OnnxBackend::new().load(&source(file("one_width.onnx")), context);
    let forms: [(u32, &[i64]); 5] = [
        (0, &[1, 3, 100]),
        (0, &[-1, 3, 100]),
        (0, &[3, 100]),
        (8, &[3, 100]),
        (1, &[-1, 100]),
    ];
    let contexts = forms.map(|(max_batch_size, dims)| configured(max_batch_size, dims));
    for context in contexts.iter().chain([&LoadContext::default()]) {
        let model = load(context).unwrap();
        let outputs = infer(&*model, image(&[1, 3, 100])).unwrap();
        assert_eq!(outputs[0].value.shape().dims(), [1, 300]);
    }
    let message = refusal(&*load(&LoadContext::default()).unwrap(), &[1, 3, 99]);
    assert!(message.contains("node 'y' (Reshape): "), "{message}");
    // The configuration sets a width with which every request would fail, so loading fails.
    let message = load(&configured(0, &[1, 3, 99])).err().unwrap().to_string();
    assert!(message.contains("node 'y' (Reshape): "), "{message}");
}
