//! Tests models whose weights are in files next to the model.

use backend_onnx::OnnxBackend;
use oip_model::{Backend, LoadContext};
use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

use crate::support::{Runtime, file, infer, onnx_runtime, runtimes, source};

/// Returns the fixture, with an allowed name in place of the forbidden path of its external file.
fn content() -> Vec<u8> {
    let mut content = file("external_data.onnx");
    let mut windows = content.windows(12);
    let at = windows.position(|window| window == b"../../secret").unwrap();
    content[at..at + 12].copy_from_slice(b"weights.data");
    content
}

#[test]
fn weights_come_from_the_files_that_the_model_names() {
    for &runtime in runtimes() {
        let backend = match runtime {
            Runtime::BuiltIn => OnnxBackend::new(),
            Runtime::OnnxRuntime => OnnxBackend::new().with_runtime(onnx_runtime().unwrap()),
        };
        let mut source = source(content());
        assert_eq!(backend.files_beside(&source.content).unwrap(), ["weights.data"]);
        let weights = [10.0f32, 20.0].map(f32::to_le_bytes).concat();
        source.beside = vec![("weights.data".to_owned(), weights.into())];
        let model = backend.load(&source, &LoadContext::default()).unwrap();
        let input = Tensor::from_vec(Shape::new(&[1, 2]).unwrap(), vec![1.0f32, 2.0]).unwrap();
        let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", input);
        let outputs = infer(&*model, request).unwrap();
        let sums: Vec<f32> = outputs[0].value.as_fixed().unwrap().to_vec().unwrap();
        assert_eq!(sums, [11.0, 22.0], "{runtime:?}");
    }
}

#[test]
fn files_that_are_too_short_are_refused() {
    let mut source = source(content());
    source.beside = vec![("weights.data".to_owned(), vec![0; 7].into())];
    let error = OnnxBackend::new()
        .load(&source, &LoadContext::default())
        .err()
        .unwrap();
    let message = error.to_string();
    assert!(
        message.contains("'w' has its external data at 0 of 'weights.data', 8 bytes long"),
        "{message}"
    );
}
