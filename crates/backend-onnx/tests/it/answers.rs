//! Tests that models return ONNX Runtime's recorded outputs at every batch size.

use oip_types::{BytesTensor, ErrorCode, InferOutput, InferRequest, TensorValue};
use tensor_core::Shape;

use crate::support::{Runtime, compare, file, infer, recorded_request, recorded_response, runtimes};

#[test]
fn models_answer_as_onnx_runtime_does() {
    for &runtime in runtimes() {
        models_answer_as_recorded(runtime);
    }
}

fn models_answer_as_recorded(runtime: Runtime) {
    let mut wrong = Vec::new();
    let names = runtime.recorded();
    assert!(names.len() > 90);
    for name in names {
        let expected = recorded_response(&name).outputs;
        let answer = runtime
            .load(file(&format!("{name}.onnx")))
            .and_then(|model| infer(&*model, recorded_request(&name)));
        match answer {
            Ok(outputs) => {
                assert_eq!(outputs.len(), expected.len(), "{name}");
                let pairs = outputs.iter().zip(&expected);
                wrong.extend(
                    pairs.filter_map(|(found, expected)| {
                        Some((name.clone(), compare(found, expected).err()?))
                    }),
                );
            }
            Err(error) => wrong.push((name, error.report())),
        }
    }
    assert!(wrong.is_empty(), "{runtime:?}: {wrong:#?}");
}

/// Checks that models accept batches of all sizes, and that the outputs for a row are the same whether it is
/// sent alone or in a batch.
#[test]
fn rows_are_answered_alone_as_they_are_together() {
    for &runtime in runtimes() {
        rows_are_answered_alone(runtime);
    }
}

fn rows_are_answered_alone(runtime: Runtime) {
    let mut checked = 0;
    for name in runtime.recorded() {
        let (model, request) = (runtime.model(&name), recorded_request(&name));
        let metadata = model.metadata();
        let tensors = || metadata.inputs.iter().chain(&metadata.outputs);
        if !tensors().all(|tensor| tensor.shape.dims().first() == Some(&None)) {
            continue;
        }
        // The models `texts_*` look up elements by index, so their rows cannot be separated.
        if name.starts_with("texts_") {
            continue;
        }
        let count = request.inputs[0].value.shape().dims()[0];
        // Skips models whose inputs differ in batch size, because such inputs are broadcast.
        if request
            .inputs
            .iter()
            .any(|input| input.value.shape().dims()[0] != count)
        {
            continue;
        }
        let expected = infer(&*model, request.clone()).unwrap();
        // Skips models that compute the first dimension of an output, because that dimension is not the
        // batch.
        if expected
            .iter()
            .any(|output| output.value.shape().dims()[0] != count)
        {
            continue;
        }
        for row in 0..count {
            let outputs = infer(&*model, rows(&request, row..row + 1))
                .unwrap_or_else(|error| panic!("{name} with {runtime:?}: {}", error.report()));
            for (found, expected) in outputs.iter().zip(&expected) {
                let expected = InferOutput::new(expected.name.as_str(), slice(&expected.value, row..row + 1));
                compare(found, &expected)
                    .unwrap_or_else(|error| panic!("{name} with {runtime:?}, row {row}: {error}"));
            }
        }
        checked += 1;
    }
    assert!(checked > 70, "{checked}");
}

/// Checks that an empty batch gives empty outputs, or a client error where ONNX Runtime does not support it.
#[test]
fn no_rows_are_a_batch_too() {
    let names = [
        "mlp_classifier",
        "random_forest",
        "svc",
        "standard_scaler",
        "one_hot_strings",
        "people",
        "identity",
    ];
    for (name, &runtime) in names
        .iter()
        .flat_map(|name| runtimes().iter().map(move |runtime| (name, runtime)))
    {
        let model = runtime.model(name);
        let outputs = match infer(&*model, rows(&recorded_request(name), 0..0)) {
            Ok(outputs) => outputs,
            // ONNX Runtime does not compute labels for an empty batch.
            Err(error) if runtime == Runtime::OnnxRuntime && *name == "mlp_classifier" => {
                assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
                continue;
            }
            Err(error) => panic!("{name} with {runtime:?}: {}", error.report()),
        };
        for output in outputs {
            assert_eq!(output.value.shape().dims()[0], 0, "{name}");
        }
    }
}

fn rows(request: &InferRequest, range: std::ops::Range<u64>) -> InferRequest {
    let mut part = request.clone();
    for input in &mut part.inputs {
        input.value = slice(&input.value, range.clone());
    }
    part
}

fn slice(value: &TensorValue, range: std::ops::Range<u64>) -> TensorValue {
    match value {
        TensorValue::Fixed(tensor) => tensor.rows(range).unwrap().into(),
        TensorValue::Bytes(strings) => {
            let mut dims = strings.shape().dims().to_vec();
            let width = dims[1..].iter().product::<u64>();
            dims[0] = range.end - range.start;
            let skipped = (range.start * width) as usize;
            let elements: Vec<_> = strings
                .iter()
                .skip(skipped)
                .take((dims[0] * width) as usize)
                .collect();
            BytesTensor::from_elements(Shape::new(&dims).unwrap(), elements)
                .unwrap()
                .into()
        }
    }
}
