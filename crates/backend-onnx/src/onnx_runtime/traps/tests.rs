//! Tests the rewrites of traps. Some tests also run the models, with the library that `ORT_DYLIB_PATH` names.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;

use oip_service::{Backend, Call, CancelToken, LoadContext, Model, ModelSource, NeedsProcess};
use oip_types::{ErrorCode, InferRequest, ModelRef, ServiceError};
use onnx_graph::proto::{
    FunctionProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, tensor_shape_proto::Dimension, type_proto,
};
use prost::Message;
use tensor_core::{Element, Shape, Tensor};

use super::*;
use crate::{OnnxBackend, OnnxRuntime, made_up::node};

fn port(name: &str, element: DataType, rank: usize) -> ValueInfoProto {
    let tensor = type_proto::Tensor {
        elem_type: element as i32,
        shape: Some(TensorShapeProto {
            dim: vec![Dimension::default(); rank],
        }),
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
        }),
    }
}

fn model(nodes: Vec<NodeProto>, inputs: &[(&str, DataType, usize)], output: (DataType, usize)) -> ModelProto {
    let import = |domain: &str, version| OperatorSetIdProto {
        domain: domain.to_owned(),
        version,
    };
    ModelProto {
        ir_version: 8,
        graph: Some(GraphProto {
            name: "graph".to_owned(),
            node: nodes,
            input: inputs
                .iter()
                .map(|&(name, element, rank)| port(name, element, rank))
                .collect(),
            output: vec![port("y", output.0, output.1)],
            ..GraphProto::default()
        }),
        opset_import: vec![import("", 17), import("com.microsoft", 1)],
        ..ModelProto::default()
    }
}

fn integers(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64 as i32,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i,
        ..AttributeProto::default()
    }
}

fn microsoft(node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        domain: table::MICROSOFT.to_owned(),
        attribute: attributes,
        ..node
    }
}

fn disarmed(mut model: ModelProto) -> (ModelProto, DisarmOutcome) {
    let disarmed = disarm(&mut model);
    structure::check(&model).unwrap();
    (model, disarmed)
}

fn division(op: &str, element: DataType) -> ModelProto {
    model(
        vec![node(op, &["x", "d"], "y")],
        &[("x", element, 1), ("d", element, 1)],
        (element, 1),
    )
}

fn operators(model: &ModelProto) -> Vec<&str> {
    let nodes = model.graph.as_ref().unwrap().node.iter();
    nodes
        .map(|node| node.op_type.as_str())
        .filter(|op| *op != "Constant")
        .collect()
}

#[test]
fn divisions_of_wide_integers_are_rewritten_and_others_are_not() {
    for (op, last) in [("Div", "Mul"), ("Mod", "Mod")] {
        for element in [DataType::Int32, DataType::Int64] {
            let (model, disarmed) = disarmed(division(op, element));
            let written = &model.graph.as_ref().unwrap().node;
            assert_eq!(written.last().unwrap().op_type, last);
            assert_eq!(written.last().unwrap().output, ["y"]);
            assert!(disarmed.is_changed && disarmed.unguarded.is_none());
        }
        for element in [
            DataType::Float,
            DataType::Double,
            DataType::Int8,
            DataType::Uint64,
        ] {
            let (model, disarmed) = disarmed(division(op, element));
            assert_eq!(operators(&model), [op]);
            assert!(!disarmed.is_changed);
        }
    }
    let mut floating = division("Mod", DataType::Int64);
    floating.graph.as_mut().unwrap().node[0]
        .attribute
        .push(int("fmod", 1));
    assert_eq!(operators(&disarmed(floating).0), ["Mod"]);
}

#[test]
fn a_constant_divisor_is_looked_at() {
    let by = |values: &[i64]| {
        let nodes = vec![node("Div", &["x", "d"], "y")];
        let mut model = model(nodes, &[("x", DataType::Int64, 1)], (DataType::Int64, 1));
        model
            .graph
            .as_mut()
            .unwrap()
            .initializer
            .push(integers("d", values));
        disarmed(model).1.is_changed
    };
    assert!(!by(&[2]) && !by(&[3, -2, i64::MIN]));
    assert!(by(&[-1]) && by(&[0]) && by(&[2, -1]));
    // A `Constant` node counts like an initializer.
    let mut two = node("Constant", &[], "d");
    two.attribute.push(int("value_int", 2));
    let nodes = vec![two, node("Shape", &["x"], "s"), node("Div", &["s", "d"], "y")];
    let model = model(nodes, &[("x", DataType::Float, 2)], (DataType::Int64, 1));
    assert!(!disarmed(model).1.is_changed);
}

#[test]
fn a_division_of_unknown_datatype_needs_a_process() {
    let unknown = microsoft(node("MurmurHash3", &["x"], "h"), vec![]);
    let nodes = vec![unknown, node("Div", &["h", "h"], "q"), node("Cast", &["q"], "y")];
    let model = model(nodes, &[("x", DataType::Int64, 1)], (DataType::Float, 1));
    let reason = disarmed(model).1.unguarded.unwrap();
    assert_eq!(
        reason,
        "node 'q' (Div): of a datatype that is not known before a run"
    );
}

#[test]
fn divisions_in_inner_graphs_and_functions_are_rewritten() {
    let branch = |name: &str| AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Graph as i32,
        g: Some(GraphProto {
            name: name.to_owned(),
            node: vec![node("Div", &["x", "d"], name)],
            output: vec![port(name, DataType::Int64, 1)],
            ..GraphProto::default()
        }),
        ..AttributeProto::default()
    };
    let mut choice = node("If", &["c"], "y");
    choice.attribute = vec![branch("then_branch"), branch("else_branch")];
    let ports = [
        ("c", DataType::Bool, 0),
        ("x", DataType::Int64, 1),
        ("d", DataType::Int64, 1),
    ];
    let (changed, _) = disarmed(model(vec![choice], &ports, (DataType::Int64, 1)));
    let branches = changed.graph.as_ref().unwrap().node[0].attribute.iter();
    for branch in branches {
        assert_eq!(branch.g.as_ref().unwrap().node.last().unwrap().op_type, "Mul");
    }

    let mut used = node("ratio", &["x", "d"], "y");
    used.domain = "own".to_owned();
    let mut with_function = model(vec![used], &ports[1..], (DataType::Int64, 1));
    with_function.opset_import.push(OperatorSetIdProto {
        domain: "own".to_owned(),
        version: 1,
    });
    let function = |version| FunctionProto {
        name: "ratio".to_owned(),
        domain: "own".to_owned(),
        input: vec!["a".to_owned(), "b".to_owned()],
        output: vec!["q".to_owned()],
        node: vec![node("Div", &["a", "b"], "q")],
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version,
        }],
        ..FunctionProto::default()
    };
    with_function.functions.push(function(17));
    let (changed, found) = disarmed(with_function.clone());
    assert!(found.unguarded.is_none() && changed.functions.is_empty());
    assert!(operators(&changed).contains(&"Where"));
    with_function.functions = vec![function(13)];
    assert!(
        disarmed(with_function)
            .1
            .unguarded
            .unwrap()
            .contains("another operator set")
    );
}

#[test]
fn inputs_that_an_operator_depends_on_must_have_elements() {
    let lstm = |from: &str| {
        let nodes = vec![
            node("Relu", &["x"], "r"),
            node("Compress", &["x", "c"], "some"),
            node("LSTM", &[from, "w", "h"], "y"),
        ];
        let ports = [
            ("x", DataType::Float, 3),
            ("c", DataType::Bool, 1),
            ("w", DataType::Float, 3),
            ("h", DataType::Float, 3),
        ];
        disarmed(model(nodes, &ports, (DataType::Float, 4))).1
    };
    for from in ["x", "r"] {
        let found = lstm(from);
        assert_eq!(
            found.filled.into_iter().collect::<Vec<_>>(),
            [("x".to_owned(), "LSTM".to_owned())]
        );
        assert!(!found.is_changed);
    }
    // The number of elements is unknown before the run, so the graph checks it.
    let found = lstm("some");
    assert!(found.is_changed && found.filled.is_empty());
}

#[test]
fn the_first_step_of_a_decoder_has_an_empty_past() {
    let inputs = ["q", "k", "v", "", "", "", "past_k", "past_v"];
    let attention = node("MultiHeadAttention", &inputs, "y");
    let mut attention = microsoft(attention, vec![int("num_heads", 2)]);
    attention.output.extend(["now_k".to_owned(), "now_v".to_owned()]);
    let ports = ["q", "k", "v"].map(|name| (name, DataType::Float, 3));
    let past = ["past_k", "past_v"].map(|name| (name, DataType::Float, 4));
    let found = disarmed(model(
        vec![attention],
        &[&ports[..], &past].concat(),
        (DataType::Float, 3),
    ))
    .1;
    let names: Vec<&str> = found.filled.keys().map(String::as_str).collect();
    assert_eq!(names, ["k", "q", "v"]);
    assert!(!found.is_changed);
}

/// Queries, keys and values are split from one product, as exporters of language models write them.
#[test]
fn parts_of_a_product_have_elements_where_their_sizes_are_constant() {
    let found = |sizes: &[i64]| {
        let mut split = node("Split", &["x", "sizes"], "q");
        split.output.extend(["k".to_owned(), "v".to_owned()]);
        let attention = microsoft(
            node("MultiHeadAttention", &["q", "k", "v"], "y"),
            vec![int("num_heads", 2)],
        );
        let mut model = model(
            vec![split, attention],
            &[("x", DataType::Float, 3)],
            (DataType::Float, 3),
        );
        let graph = model.graph.as_mut().unwrap();
        graph.initializer.push(integers("sizes", sizes));
        disarmed(model).1
    };
    let known = found(&[8, 8, 8]);
    assert!(!known.is_changed && known.filled.contains_key("x"));
    assert!(found(&[8, 16, 0]).is_changed);
}

#[test]
fn operators_without_a_rewrite_need_a_process() {
    for op in ["AttnLSTM", "Inverse", "SampleOp"] {
        let nodes = vec![microsoft(node(op, &["x"], "y"), vec![])];
        let found = disarmed(model(nodes, &[("x", DataType::Float, 2)], (DataType::Float, 2))).1;
        assert!(found.unguarded.unwrap().starts_with(&format!("node 'y' ({op})")));
    }
    let mut inner = node("Conv", &["x", "x"], "y");
    inner.domain = "com.microsoft.nchwc".to_owned();
    let found = disarmed(model(
        vec![inner],
        &[("x", DataType::Float, 2)],
        (DataType::Float, 2),
    ))
    .1;
    assert!(found.unguarded.unwrap().contains("of this domain"));
    let mut old = division("Div", DataType::Int64);
    old.opset_import[0].version = 8;
    assert!(
        disarmed(old)
            .1
            .unguarded
            .unwrap()
            .contains("operator set before 9")
    );
}

/// Attributes and constants with which the library crashes at load or run, or returns uninitialized memory.
#[test]
fn files_that_end_a_process_are_refused() {
    for (intercepts, transform, is_refused) in
        [(1, "PROBIT", true), (2, "PROBIT", false), (1, "LOGISTIC", false)]
    {
        let mut classifier = node("LinearClassifier", &["x"], "y");
        classifier.domain = "ai.onnx.ml".to_owned();
        classifier.attribute.extend([
            AttributeProto {
                name: "intercepts".to_owned(),
                floats: vec![0.5; intercepts],
                ..AttributeProto::default()
            },
            AttributeProto {
                name: "post_transform".to_owned(),
                s: transform.as_bytes().to_vec().into(),
                ..AttributeProto::default()
            },
        ]);
        let found = disarmed(model(
            vec![classifier],
            &[("x", DataType::Float, 2)],
            (DataType::Float, 2),
        ))
        .1;
        assert_eq!(found.refused.is_some(), is_refused, "{intercepts} {transform}");
    }
    for (labels, is_refused) in [(2, true), (3, false)] {
        let mut votes = node("SVMClassifier", &["x"], "y");
        votes.domain = "ai.onnx.ml".to_owned();
        votes.attribute.extend([
            AttributeProto {
                name: "classlabels_ints".to_owned(),
                ints: (0..labels).collect(),
                ..AttributeProto::default()
            },
            AttributeProto {
                name: "post_transform".to_owned(),
                s: b"PROBIT".to_vec().into(),
                ..AttributeProto::default()
            },
        ]);
        let found = disarmed(model(
            vec![votes],
            &[("x", DataType::Float, 2)],
            (DataType::Float, 2),
        ))
        .1;
        assert_eq!(found.refused.is_some(), is_refused, "{labels} labels");
    }
    for (count, is_refused) in [(1 << 20, false), (1 << 40, true)] {
        let mut trees = node("TreeEnsembleRegressor", &["x"], "y");
        trees.domain = "ai.onnx.ml".to_owned();
        trees.attribute.push(int("n_targets", count));
        let found = disarmed(model(
            vec![trees],
            &[("x", DataType::Float, 2)],
            (DataType::Float, 2),
        ))
        .1;
        assert_eq!(found.refused.is_some(), is_refused, "{count}");
    }
    for (heads, is_refused) in [(1, false), (0, true), (-1, true), (1 << 32, true)] {
        let mut attention = node("Attention", &["x", "x", "x"], "y");
        attention
            .attribute
            .extend([int("q_num_heads", 2), int("kv_num_heads", heads)]);
        let found = disarmed(model(
            vec![attention],
            &[("x", DataType::Float, 3)],
            (DataType::Float, 3),
        ))
        .1;
        assert_eq!(found.refused.is_some(), is_refused, "{heads}");
    }
    for (batch_dims, is_refused) in [(0, false), (1, false), (-1, true), (i64::MAX, true)] {
        let mut gather = node("GatherND", &["x", "i"], "y");
        gather.attribute.push(int("batch_dims", batch_dims));
        let ports = [("x", DataType::Float, 2), ("i", DataType::Int64, 2)];
        let found = disarmed(model(vec![gather], &ports, (DataType::Float, 1))).1;
        assert_eq!(found.refused.is_some(), is_refused, "{batch_dims}");
    }
    for (count, is_refused) in [(1, false), (3, true), (0, true), (-1, true), (i64::MAX, true)] {
        let mut split = node("Split", &["x"], "y");
        split.attribute.push(int("num_outputs", count));
        let found = disarmed(model(
            vec![split],
            &[("x", DataType::Float, 2)],
            (DataType::Float, 2),
        ))
        .1;
        assert_eq!(found.refused.is_some(), is_refused, "{count}");
    }
    for (widths, is_refused) in [(&[2, 1][..], false), (&[2, -1], true), (&[1, i64::MAX], true)] {
        let mut vectorizer = node("FeatureVectorizer", &["x", "x"], "y");
        vectorizer.domain = "ai.onnx.ml".to_owned();
        vectorizer.attribute.push(AttributeProto {
            name: "inputdimensions".to_owned(),
            ints: widths.to_vec(),
            ..AttributeProto::default()
        });
        let found = disarmed(model(
            vec![vectorizer],
            &[("x", DataType::Float, 2)],
            (DataType::Float, 2),
        ))
        .1;
        assert_eq!(found.refused.is_some(), is_refused, "{widths:?}");
    }
    for (size, is_refused) in [(2, false), (0, true)] {
        let mut graph = model(
            vec![node("SplitToSequence", &["x", "size"], "y")],
            &[("x", DataType::Float, 2)],
            (DataType::Float, 2),
        );
        graph.graph.as_mut().unwrap().initializer.push(TensorProto {
            name: "size".to_owned(),
            data_type: DataType::Int64 as i32,
            int64_data: vec![size],
            ..TensorProto::default()
        });
        assert_eq!(disarmed(graph).1.refused.is_some(), is_refused, "{size}");
    }
}

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
            "cannot run with a length or a step that is not above 0",
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

/// `NonMaxSuppression` reads the first element of its limits without checking that one exists.
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
        reason.contains("node 'y' (Inverse): a matrix that is not square ends the process"),
        "{reason}"
    );
    // The file declares INT64 for an FP32 value, so the rewritten graph is refused. ONNX Runtime would refuse
    // the original too, but only a separate process may try that.
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
