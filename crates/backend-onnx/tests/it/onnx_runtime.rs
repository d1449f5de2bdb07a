//! Tests for ONNX Runtime only, which are skipped unless `ORT_DYLIB_PATH` names its library.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use backend_onnx::{OnnxBackend, OnnxRuntime};
use bytes::Bytes;
use oip_model::{Backend, CancelToken, LoadContext};
use oip_types::{
    DataType, ErrorCode, InferRequest, ModelConfig, ModelRef, TensorValue, model_config::ConfigParameter,
};
use tensor_core::{Shape, Tensor, bf16};

use crate::support::{
    Runtime, compare, file, infer, onnx_runtime, recorded_request, recorded_response, runtimes, source,
};

fn is_there() -> bool {
    runtimes().contains(&Runtime::OnnxRuntime)
}

fn single(name: &str, value: impl Into<TensorValue>) -> InferRequest {
    InferRequest::new(ModelRef::new("m", None).unwrap()).with_input(name, value)
}

fn count_to(count: i64) -> InferRequest {
    single("n", Tensor::from_vec(Shape::scalar(), vec![count]).unwrap())
}

#[test]
fn bf16_goes_in_and_out() {
    if !is_there() {
        return;
    }
    let model = Runtime::OnnxRuntime.model("bf16");
    let numbers = [1.0, -2.5, f32::INFINITY].map(bf16::from_f32).to_vec();
    let input = Tensor::from_vec(Shape::vector(3), numbers).unwrap();
    let outputs = infer(&*model, single("x", input)).unwrap();
    let doubled: Vec<bf16> = outputs[0].value.as_fixed().unwrap().to_vec().unwrap();
    assert_eq!(doubled, [2.0, -5.0, f32::INFINITY].map(bf16::from_f32));
}

/// Checks that an empty batch for an LSTM is refused, since the library would terminate the process.
#[test]
fn empty_inputs_that_would_end_the_process_are_refused() {
    if !is_there() {
        return;
    }
    let empty = |shape: [u64; 3]| {
        let lengths = vec![0i32; usize::try_from(shape[1]).unwrap()];
        let x = Tensor::from_vec(Shape::new(&shape).unwrap(), Vec::<f32>::new()).unwrap();
        single("x", x).with_input(
            "lens",
            Tensor::from_vec(Shape::vector(shape[1]), lengths).unwrap(),
        )
    };
    let model = Runtime::OnnxRuntime.model("lstm_free_batch");
    let features = model.metadata().inputs[0]
        .shape
        .dims()
        .last()
        .copied()
        .flatten()
        .unwrap();
    let error = infer(&*model, empty([4, 0, features])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    let message = error.message();
    assert!(
        message.contains("ONNX Runtime cannot run LSTM without elements"),
        "{message}"
    );
}

/// Checks that a loop of 2^62 iterations ends at the deadline or when it is cancelled, and that its session
/// still works.
#[test]
fn runs_without_end_are_ended() {
    if !is_there() {
        return;
    }
    let model = Runtime::OnnxRuntime.model("loop");
    let rounds = 1 << 62;
    for _ in 0..3 {
        let start = Instant::now();
        let token = CancelToken::new(Some(start + Duration::from_millis(100)));
        let error = model.infer(count_to(rounds), &token).unwrap_err();
        assert_eq!(error.code(), ErrorCode::DeadlineExceeded, "{}", error.report());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());

        let token = CancelToken::new(None);
        let other = token.clone();
        let client = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            other.cancel();
        });
        let error = model.infer(count_to(rounds), &token).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Cancelled, "{}", error.report());
        client.join().unwrap();

        let outputs = infer(&*model, count_to(3)).unwrap();
        assert_eq!(outputs[0].value.as_fixed().unwrap().to_vec::<i64>().unwrap(), [3]);
    }
    // Waits until the watching thread sleeps.
    thread::sleep(Duration::from_millis(400));
    let token = CancelToken::new(Some(Instant::now() + Duration::from_millis(50)));
    let error = model.infer(count_to(rounds), &token).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded, "{}", error.report());
}

/// Checks that a hanging run does not block other runs of the same session.
#[test]
fn a_run_that_hangs_leaves_the_others_alone() {
    if !is_there() {
        return;
    }
    let model = Arc::from(Runtime::OnnxRuntime.model("loop"));
    let token = CancelToken::new(None);
    let hanging: Vec<_> = (0..4)
        .map(|_| {
            let (model, token): (Arc<dyn oip_model::Model>, _) = (Arc::clone(&model), token.clone());
            thread::spawn(move || model.infer(count_to(1 << 62), &token).unwrap_err().code())
        })
        .collect();
    for count in 0..50 {
        let outputs = infer(&*model, count_to(count)).unwrap();
        assert_eq!(
            outputs[0].value.as_fixed().unwrap().to_vec::<i64>().unwrap(),
            [count]
        );
    }
    token.cancel();
    for thread in hanging {
        assert_eq!(thread.join().unwrap(), ErrorCode::Cancelled);
    }
}

/// Checks that an output that aliases an input is copied, since the request's memory may be freed before the
/// output is read.
#[test]
fn answers_outlive_their_requests() {
    if !is_there() {
        return;
    }
    let model = Runtime::OnnxRuntime.model("input_is_output");
    let request = recorded_request("input_is_output");
    let inputs: Vec<_> = request
        .inputs
        .iter()
        .map(|input| input.value.raw().as_ptr_range())
        .collect();
    let kept: Vec<Vec<u8>> = request
        .inputs
        .iter()
        .map(|input| input.value.raw().to_vec())
        .collect();
    let outputs = infer(&*model, request).unwrap();
    assert!(
        outputs
            .iter()
            .any(|output| kept.iter().any(|input| output.value.raw() == input))
    );
    for output in &outputs {
        let found = output.value.raw().as_ptr();
        assert!(
            inputs.iter().all(|input| !input.contains(&found)),
            "{}",
            output.name
        );
    }
}

/// Checks that unaligned inputs, and BOOLs with bytes other than 0 and 1, are copied and give the same
/// outputs.
#[test]
fn inputs_that_cannot_be_borrowed_are_copied() {
    if !is_there() {
        return;
    }
    let model = Runtime::OnnxRuntime.model("mlp_classifier");
    let expected = infer(&*model, recorded_request("mlp_classifier")).unwrap();
    let mut request = recorded_request("mlp_classifier");
    let value = &request.inputs[0].value;
    let mut shifted = vec![0];
    shifted.extend_from_slice(value.raw());
    let shifted = Bytes::from(shifted).slice(1..);
    assert!(!shifted.as_ptr().cast::<f32>().is_aligned());
    let shifted = TensorValue::from_raw(DataType::FP32, value.shape().clone(), shifted).unwrap();
    request.inputs[0].value = shifted;
    let found = infer(&*model, request).unwrap();
    assert_eq!(found[1].value.raw(), expected[1].value.raw());
}

/// Checks that concurrent runs of one session return the same outputs as sequential ones. Sessions must not
/// share constants of 4 KiB and more: otherwise, ONNX Runtime returns wrong results after a Transpose, and
/// its quantized operators refuse the constants.
#[test]
fn runs_at_the_same_time_answer_the_same() {
    if !is_there() {
        return;
    }
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../oip-server/examples/models/digits/1/model.onnx"
    );
    let content = std::fs::read(path).unwrap();
    let pixels = (0..32 * 64).map(|index| (index * 7919 % 17) as f32).collect();
    let images = Tensor::from_vec(Shape::new(&[32, 64]).unwrap(), pixels).unwrap();
    let answer = |model: &dyn oip_model::Model| {
        let name = &model.metadata().inputs[0].name;
        infer(model, single(name, images.clone())).unwrap()
    };
    let expected = answer(&*Runtime::BuiltIn.load(content.clone()).unwrap());
    let model = Runtime::OnnxRuntime.load(content).unwrap();
    let built_in = Runtime::BuiltIn.load(std::fs::read(path).unwrap()).unwrap();
    assert_eq!(model.metadata(), built_in.metadata());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    for (found, expected) in answer(&*model).iter().zip(&expected) {
                        compare(found, expected).unwrap();
                    }
                }
            });
        }
    });
    for name in ["transposed_constant", "quantized_product", "quantized_layer"] {
        let model = Runtime::OnnxRuntime.model(name);
        let expected = recorded_response(name).outputs;
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let found = infer(&*model, recorded_request(name)).unwrap();
                        compare(&found[0], &expected[0]).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn configurations_choose_the_runtime() {
    let load = |backend: &OnnxBackend, name: &str, config: ModelConfig| {
        let cx = LoadContext::default().with_config(Arc::new(config));
        let loaded = backend.load(&source(file(&format!("{name}.onnx"))), &cx);
        loaded.map(drop).map_err(|error| error.to_string())
    };
    let runtime = |runtime: &str| ModelConfig {
        runtime: runtime.to_owned(),
        ..ModelConfig::default()
    };
    let alone = OnnxBackend::new();
    for choice in ["", "auto", "tract", "built-in", "libtriton_onnxruntime.so"] {
        assert_eq!(load(&alone, "mlp_classifier", runtime(choice)), Ok(()));
    }
    let message = load(&alone, "mlp_classifier", runtime("onnxruntime")).unwrap_err();
    assert!(
        message.contains("does not have: start the server with --onnxruntime PATH"),
        "{message}"
    );
    let message = load(&alone, "mlp_classifier", runtime("torch")).unwrap_err();
    assert!(
        message.contains("'torch', expected 'onnxruntime', 'built-in' or 'auto'"),
        "{message}"
    );

    let Some(library) = onnx_runtime() else {
        return;
    };
    let both = OnnxBackend::new().with_runtime(library);
    for choice in ["", "auto", "onnxruntime"] {
        assert_eq!(load(&both, "unknown_domain", runtime(choice)), Ok(()));
    }
    let message = load(&both, "unknown_domain", runtime("built-in")).unwrap_err();
    assert!(
        message.contains("can run this: set runtime to 'onnxruntime'"),
        "{message}"
    );

    for (threads, is_good) in [("2", true), ("0", true), ("-1", false), ("many", false)] {
        let mut config = runtime("onnxruntime");
        let parameter = ConfigParameter {
            string_value: threads.to_owned(),
        };
        config
            .parameters
            .insert("intra_op_thread_count".to_owned(), parameter);
        assert_eq!(
            load(&both, "mlp_classifier", config).is_ok(),
            is_good,
            "{threads}"
        );
    }
}

/// Checks that `auto` chooses the same runtime for a model each time, regardless of the load of the machine.
#[test]
fn auto_is_onnx_runtime_only_for_what_the_built_in_one_refuses() {
    let Some(library) = onnx_runtime() else {
        return;
    };
    let both = OnnxBackend::new().with_runtime(library);
    let runtime = |name: &str, runtime: &str| {
        let config = ModelConfig {
            runtime: runtime.to_owned(),
            ..ModelConfig::default()
        };
        let cx = LoadContext::default().with_config(Arc::new(config));
        let loaded = both.load(&source(file(&format!("{name}.onnx"))), &cx).unwrap();
        loaded.capabilities().runtime.unwrap()
    };
    for name in ["mlp_classifier", "loop", "decision_tree"] {
        // Configurations may still use the built-in runtime's former name.
        for choice in ["auto", "built-in", "tract"] {
            assert_eq!(runtime(name, choice), "built-in", "{name}");
        }
        assert_eq!(runtime(name, ""), "onnxruntime", "{name}");
        assert_eq!(runtime(name, "onnxruntime"), "onnxruntime", "{name}");
    }
    assert_eq!(runtime("unknown_domain", "auto"), "onnxruntime");
}

/// Checks that the error for a model that both runtimes refuse is the built-in runtime's, which says what to
/// do.
#[test]
fn what_both_runtimes_refuse_has_the_reason_of_the_built_in_one() {
    let Some(library) = onnx_runtime() else {
        return;
    };
    let config = ModelConfig {
        runtime: "auto".to_owned(),
        ..ModelConfig::default()
    };
    let cx = LoadContext::default().with_config(Arc::new(config));
    let load = |backend: &OnnxBackend, cx: &LoadContext| {
        let loaded = backend.load(&source(file("cycle.onnx")), cx);
        loaded.map(drop).unwrap_err().to_string()
    };
    let alone = load(&OnnxBackend::new(), &LoadContext::default());
    assert_eq!(load(&OnnxBackend::new().with_runtime(library), &cx), alone);
}

/// Checks that an ONNX model with `ORTM` at offset 4 is read as ONNX. Files in ONNX Runtime's own format have
/// these bytes there, and would be read unchecked.
#[test]
fn a_model_is_read_as_onnx_whatever_it_looks_like() {
    if !is_there() {
        return;
    }
    let mut content = file("loop.onnx");
    assert_eq!(content[..2], [0x08, 8], "the version comes first");
    // The producer's name: field 2, 8 bytes.
    content.splice(2..2, *b"\x12\x08ORTMaker");
    assert_eq!(content[4..8], *b"ORTM");
    let model = Runtime::OnnxRuntime.load(content).unwrap();
    let outputs = infer(&*model, count_to(2)).unwrap();
    assert_eq!(outputs[0].value.as_fixed().unwrap().to_vec::<i64>().unwrap(), [2]);
}

#[test]
fn a_process_has_one_library() {
    let Some(library) = onnx_runtime() else {
        return;
    };
    assert!(library.build().contains("ORT Build Info"), "{}", library.build());
    // A library is already loaded, so another file is refused without being read.
    let other = std::env::current_exe().unwrap();
    let error = OnnxRuntime::load(&other).unwrap_err().to_string();
    assert!(error.contains("the process already uses the one of"), "{error}");
}
