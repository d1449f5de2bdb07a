//! Tests the rewrites of traps.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onnx_graph::proto::{
    FunctionProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, tensor_shape_proto::Dimension, type_proto,
};

use super::*;
use crate::test_models::node;

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

pub(super) fn model(
    nodes: Vec<NodeProto>,
    inputs: &[(&str, DataType, usize)],
    output: (DataType, usize),
) -> ModelProto {
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

pub(super) fn integers(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64 as i32,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

pub(super) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i,
        ..AttributeProto::default()
    }
}

pub(super) fn microsoft(node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
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

pub(super) fn division(op: &str, element: DataType) -> ModelProto {
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

/// Checks attention over parts of a `Split`, as in exported language models: the parts are non-empty if their
/// constant sizes are above 0.
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

/// Checks which files are refused: those with attributes or constants for which the library crashes, or
/// returns uninitialized memory.
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
