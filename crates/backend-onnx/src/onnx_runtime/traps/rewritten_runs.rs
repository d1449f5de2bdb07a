//! Runs rewritten models with the library that `ORT_DYLIB_PATH` names.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;

use oip_model::{Backend, Call, CancelToken, LoadContext, Model, ModelSource, NeedsProcess};
use oip_types::{ErrorCode, InferRequest, ModelRef, ServiceError};
use onnx_graph::proto::tensor_proto::DataType;
use prost::Message;
use tensor_core::{Element, Shape, Tensor};

use super::tests::{division, int, integers, microsoft, model};
use super::*;
use crate::{OnnxBackend, OnnxRuntime, test_models::node};

/// Loads the library that `ORT_DYLIB_PATH` names.
fn library() -> Option<OnnxRuntime> {
    let Some(path) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) else {
        let note = b"skipped: traps in ONNX Runtime itself, as ORT_DYLIB_PATH names no library\n";
        std::io::stderr().write_all(note).unwrap();
        return None;
    };
    Some(OnnxRuntime::load(path).unwrap())
}

fn load(library: &OnnxRuntime, model: &ModelProto, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
    let source = ModelSource::new("m", "1", "m/1/model.onnx", model.encode_to_vec().into());
    OnnxBackend::new().with_runtime(library.clone()).load(&source, cx)
}

fn loaded(library: &OnnxRuntime, model: &ModelProto) -> Box<dyn Model> {
    load(library, model, &LoadContext::default()).unwrap()
}

fn tensor<T: Element>(dims: &[u64], values: Vec<T>) -> Tensor {
    Tensor::from_vec(Shape::new(dims).unwrap(), values).unwrap()
}

fn ask(model: &dyn Model, inputs: &[(&str, Tensor)]) -> Result<Tensor, ServiceError> {
    let mut request = InferRequest::new(ModelRef::new("m", None).unwrap());
    for (name, tensor) in inputs {
        request = request.with_input(*name, tensor.clone());
    }
    let outputs = model
        .run(Call::new(request, &CancelToken::new(None)))?
        .into_outputs()?;
    Ok(outputs[0].value.as_fixed().unwrap().clone())
}

#[track_caller]
fn is_refused(model: &dyn Model, inputs: &[(&str, Tensor)], reason: &str) {
    let error = ask(model, inputs).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    assert!(error.message().contains(reason), "{}", error.report());
}

#[test]
fn the_smallest_integer_by_minus_one_is_computed_by_onnx_runtime() {
    let Some(library) = library() else {
        return;
    };
    for length in [1usize, 5, 64] {
        let dims = [length as u64];
        let divide = |op: &str, x: i64, d: i64| {
            let model = loaded(&library, &division(op, DataType::Int64));
            let pair = [
                ("x", tensor(&dims, vec![x; length])),
                ("d", tensor(&dims, vec![d; length])),
            ];
            ask(&*model, &pair).map(|tensor| tensor.to_vec::<i64>().unwrap()[0])
        };
        assert_eq!(divide("Div", i64::MIN, -1).unwrap(), i64::MIN);
        assert_eq!(divide("Div", i64::MIN, 2).unwrap(), i64::MIN / 2);
        assert_eq!(divide("Div", 7, -1).unwrap(), -7);
        assert_eq!(divide("Div", -7, 2).unwrap(), -3);
        assert_eq!(divide("Mod", i64::MIN, -1).unwrap(), 0);
        // The result of `Mod` has the sign of the divisor.
        assert_eq!(divide("Mod", -7, 3).unwrap(), 2);
        assert_eq!(divide("Mod", 7, -3).unwrap(), -2);
        for op in ["Div", "Mod"] {
            let error = divide(op, 1, 0).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            assert!(
                error
                    .message()
                    .contains(&format!("divided by zero by node 'y' ({op})")),
                "{error}"
            );
        }
        for (op, expected) in [("Div", i32::MIN), ("Mod", 0)] {
            let model = loaded(&library, &division(op, DataType::Int32));
            let pair = [
                ("x", tensor(&dims, vec![i32::MIN; length])),
                ("d", tensor(&[1], vec![-1i32])),
            ];
            assert_eq!(
                ask(&*model, &pair).unwrap().to_vec::<i32>().unwrap(),
                vec![expected; length]
            );
        }
    }
    // Dividing empty tensors succeeds.
    let model = loaded(&library, &division("Div", DataType::Int64));
    let empty = [
        ("x", tensor(&[0], Vec::<i64>::new())),
        ("d", tensor(&[0], Vec::<i64>::new())),
    ];
    assert_eq!(ask(&*model, &empty).unwrap().shape().dims(), [0]);
}

#[test]
fn lengths_that_end_the_process_are_the_clients_fault() {
    let Some(library) = library() else {
        return;
    };
    let nodes = vec![node("STFT", &["x", "step", "", "length"], "y")];
    let ports = [
        ("x", DataType::Float, 3),
        ("step", DataType::Int64, 0),
        ("length", DataType::Int64, 0),
    ];
    let model = loaded(&library, &model(nodes, &ports, (DataType::Float, 4)));
    let request = |step: i64, length: i64| {
        let signal = (0..64).map(|index| index as f32).collect();
        let number = |value| Tensor::from_vec(Shape::scalar(), vec![value]).unwrap();
        [
            ("x", tensor(&[1, 64, 1], signal)),
            ("step", number(step)),
            ("length", number(length)),
        ]
    };
    assert_eq!(
        ask(&*model, &request(8, 16)).unwrap().shape().dims(),
        [1, 7, 9, 2]
    );
    for (step, length) in [(8, 0), (8, -1), (0, 16), (-1, 16), (i64::MIN, i64::MIN)] {
        is_refused(
            &*model,
            &request(step, length),
            "cannot run with a length or step of 0 or less",
        );
    }
}

#[test]
fn values_without_elements_end_their_run_alone() {
    let Some(library) = library() else {
        return;
    };
    let nodes = vec![
        node("Compress", &["x", "c"], "w"),
        node("Unsqueeze", &["w", "axes"], "k"),
        node("Conv", &["i", "k"], "y"),
    ];
    let ports = [
        ("x", DataType::Float, 1),
        ("c", DataType::Bool, 1),
        ("i", DataType::Float, 3),
    ];
    let mut chosen = model(nodes, &ports, (DataType::Float, 3));
    chosen
        .graph
        .as_mut()
        .unwrap()
        .initializer
        .push(integers("axes", &[0, 1]));
    let model = loaded(&library, &chosen);
    let request = |choice: bool| {
        let image = (0..5).map(|index| index as f32).collect();
        [
            ("x", tensor(&[2], vec![1.0f32, 2.0])),
            ("c", Tensor::from_vec(Shape::vector(2), vec![choice; 2]).unwrap()),
            ("i", tensor(&[1, 1, 5], image)),
        ]
    };
    assert_eq!(
        ask(&*model, &request(true)).unwrap().to_vec::<f32>().unwrap(),
        [2.0, 5.0, 8.0, 11.0]
    );
    is_refused(
        &*model,
        &request(false),
        "node 'y' (Conv) cannot run without elements",
    );
    // The session still works after the failed run.
    ask(&*model, &request(true)).unwrap();
}

#[test]
fn a_decoders_first_step_runs_and_empty_words_do_not() {
    let Some(library) = library() else {
        return;
    };
    let inputs = ["q", "k", "v", "", "", "", "past_k", "past_v"];
    let ports = ["q", "k", "v"].map(|name| (name, DataType::Float, 3));
    let past = ["past_k", "past_v"].map(|name| (name, DataType::Float, 4));
    let with_outputs = |outputs: &[&str]| {
        let attention = node("MultiHeadAttention", &inputs, "y");
        let mut attention = microsoft(attention, vec![int("num_heads", 2)]);
        attention
            .output
            .extend(outputs.iter().map(|&name| name.to_owned()));
        let ports = [&ports[..], &past].concat();
        loaded(&library, &model(vec![attention], &ports, (DataType::Float, 3)))
    };
    let model = with_outputs(&["now_k", "now_v"]);
    let request = |width: u64, earlier: u64| {
        let word = |name| (name, tensor(&[1, 1, width], vec![0.5f32; width as usize]));
        let past = |name| {
            (
                name,
                tensor(&[1, 2, earlier, 4], vec![0.25f32; 8 * earlier as usize]),
            )
        };
        [word("q"), word("k"), word("v"), past("past_k"), past("past_v")]
    };
    assert_eq!(
        ask(&*model, &request(8, 0)).unwrap().to_vec::<f32>().unwrap(),
        [0.5; 8]
    );
    let step = ask(&*model, &request(8, 3)).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(step.len(), 8);
    // Without names for the present keys and values, the library reads uninitialized memory.
    for outputs in [&[][..], &["now_k"], &["", "now_v"]] {
        let model = with_outputs(outputs);
        for _ in 0..3 {
            let found = ask(&*model, &request(8, 3)).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(found, step, "{outputs:?}");
        }
    }
    is_refused(
        &*model,
        &request(0, 0),
        "ONNX Runtime cannot run MultiHeadAttention without elements",
    );
}

/// Runs `NonMaxSuppression` with empty limits, whose first element it reads without checking that there is
/// one.
#[test]
fn inputs_without_elements_have_no_dangling_memory() {
    let Some(library) = library() else {
        return;
    };
    let nodes = vec![node(
        "NonMaxSuppression",
        &["boxes", "scores", "most", "overlap", "least"],
        "y",
    )];
    let ports = [
        ("boxes", DataType::Float, 3),
        ("scores", DataType::Float, 3),
        ("most", DataType::Int64, 1),
        ("overlap", DataType::Float, 1),
        ("least", DataType::Float, 1),
    ];
    let model = loaded(&library, &model(nodes, &ports, (DataType::Int64, 2)));
    let request = |limits: u64| {
        [
            ("boxes", tensor(&[1, 1, 4], vec![0.0f32, 0.0, 1.0, 1.0])),
            ("scores", tensor(&[1, 1, 1], vec![0.9f32])),
            ("most", tensor(&[limits], vec![3i64; limits as usize])),
            ("overlap", tensor(&[limits], vec![0.5f32; limits as usize])),
            ("least", tensor(&[limits], vec![0.1f32; limits as usize])),
        ]
    };
    assert_eq!(
        ask(&*model, &request(1)).unwrap().to_vec::<i64>().unwrap(),
        [0, 0, 0]
    );
    // The run may fail or succeed, as long as the process survives.
    let _ = ask(&*model, &request(0));
    assert_eq!(
        ask(&*model, &request(1)).unwrap().to_vec::<i64>().unwrap(),
        [0, 0, 0]
    );
}

#[test]
fn only_a_caller_that_has_processes_is_told_to_use_one() {
    let Some(library) = library() else {
        return;
    };
    let nodes = vec![microsoft(node("Inverse", &["x"], "y"), vec![])];
    let model = model(nodes, &[("x", DataType::Float, 2)], (DataType::Float, 2));
    assert!(load(&library, &model, &LoadContext::default()).is_ok());
    let error = load(&library, &model, &LoadContext::default().with_isolation(true))
        .map(drop)
        .unwrap_err();
    let reason = NeedsProcess::behind(&error).unwrap().to_string();
    assert!(
        reason.contains("node 'y' (Inverse): a matrix that is not square crashes the process"),
        "{reason}"
    );
    // The file declares INT64 for an FP32 value, so the rewritten graph is refused. ONNX Runtime would also
    // refuse the original, but that may only be tried in a separate process.
    let nodes = vec![node("Identity", &["x"], "d"), node("Div", &["x", "d"], "y")];
    let wrong = super::tests::model(nodes, &[("x", DataType::Int64, 1)], (DataType::Float, 1));
    let error = load(&library, &wrong, &LoadContext::default().with_isolation(true))
        .map(drop)
        .unwrap_err();
    assert!(NeedsProcess::behind(&error).is_some(), "{}", error.report());
    let error = load(&library, &wrong, &LoadContext::default())
        .map(drop)
        .unwrap_err();
    assert!(
        error.message().contains("ONNX Runtime refuses the model"),
        "{error}"
    );
    // A model whose traps are rewritten runs in this process.
    assert!(
        load(
            &library,
            &division("Div", DataType::Int64),
            &LoadContext::default().with_isolation(true)
        )
        .is_ok()
    );
}

#[test]
fn shapes_that_do_not_fit_are_the_clients_fault_in_the_librarys_words() {
    let Some(library) = library() else {
        return;
    };
    let nodes = vec![node("Add", &["a", "b"], "y")];
    let ports = [("a", DataType::Float, 1), ("b", DataType::Float, 1)];
    let model = loaded(&library, &model(nodes, &ports, (DataType::Float, 1)));
    let pair = [
        ("a", tensor(&[3], vec![1f32; 3])),
        ("b", tensor(&[4], vec![1f32; 4])),
    ];
    let error = ask(&*model, &pair).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    assert!(error.message().contains("broadcast"), "{error}");
    assert!(!error.message().contains("/onnxruntime"), "{error}");
}
