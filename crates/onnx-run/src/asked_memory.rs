//! Tests that a run reserves memory before it allocates values.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onnx_graph::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use onnx_tensor::{
    cancelling::Flag,
    faults::NoRoom,
    node::{Attribute, Node},
    operator::Fact,
    prelude::*,
    room::Room,
};

use crate::{
    RunErrorKind, Session,
    operators::node::{Direct, Stop},
    test_models::{body, int, integer, integers, model, node, with},
};
use onnx_tensor::cancelling::Cancellation;

/// Size in bytes of a row that a loop produces, and of a tensor in a sequence.
const ROW: usize = 1 << 20;

/// Returns whether a run of `nodes` on one row fits into `mib` MiB.
fn fits(nodes: &[NodeProto], constants: &[TensorProto], mib: u64) -> bool {
    let model = model(nodes.to_vec(), &[-1], &[], constants.to_vec());
    let session = Session::prepare(&model, |_| Ok(())).unwrap();
    let input = Tensor::zero::<f32>(&[ROW / size_of::<f32>()]).unwrap();
    let cancellation: Arc<dyn Cancellation> = Arc::new(Flag::default());
    match session.run_in([input], &cancellation, Room::of_limit(mib << 20)) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), RunErrorKind::NoMemory, "{error:?}");
            false
        }
    }
}

/// Builds an attribute `body` with a graph of these nodes.
fn body_of(nodes: Vec<NodeProto>, inputs: &[&str], outputs: &[&str]) -> AttributeProto {
    let ports = |names: &[&str]| -> Vec<ValueInfoProto> {
        let port = |name: &&str| ValueInfoProto {
            name: (*name).to_owned(),
            ..ValueInfoProto::default()
        };
        names.iter().map(port).collect()
    };
    body(GraphProto {
        name: "body".to_owned(),
        node: nodes,
        input: ports(inputs),
        output: ports(outputs),
        ..GraphProto::default()
    })
}

/// Builds the last node of a graph, which reduces `input` to one element.
fn maximum(input: &str) -> NodeProto {
    with(node("ReduceMax", &[input], "y"), [int("keepdims", 0)])
}

#[test]
fn rows_of_a_loop_are_asked_for_and_once_more_when_they_are_stacked() {
    let nodes = vec![
        node("Identity", &["on"], "on2"),
        node("Neg", &["v"], "v2"),
        node("Identity", &["v2"], "row"),
    ];
    let looped = NodeProto {
        output: vec!["last".to_owned(), "rows".to_owned()],
        ..with(
            node("Loop", &["n", "", "x"], "last"),
            [body_of(nodes, &["i", "on", "v"], &["on2", "v2", "row"])],
        )
    };
    let nodes = [looped, maximum("rows")];
    let constants = [integer("n", 32)];
    assert!(!fits(&nodes, &constants, 62), "32 rows, and 32 more in one value");
    assert!(fits(&nodes, &constants, 72));
}

#[test]
fn rows_of_a_scan_are_asked_for() {
    let slices = vec![node("Neg", &["part"], "row")];
    let scan = with(
        node("Scan", &["parts"], "rows"),
        [body_of(slices, &["part"], &["row"]), int("num_scan_inputs", 1)],
    );
    let sizes = integers("sizes", &[32, -1]);
    let nodes = [
        with(node("Concat", &["x"; 32], "all"), [int("axis", 0)]),
        node("Reshape", &["all", "sizes"], "parts"),
        scan,
        maximum("rows"),
    ];
    assert!(
        !fits(&nodes, std::slice::from_ref(&sizes), 95),
        "the input, its rows, and their stack"
    );
    assert!(fits(&nodes, &[sizes], 105));
}

#[test]
fn sequences_are_asked_for() {
    let many = || with(node("Concat", &["x"; 16], "many"), [int("axis", 0)]);
    let split = || node("SplitToSequence", &["many", "size"], "parts");
    let constants = [integer("size", (ROW / size_of::<f32>()) as i64)];
    let length = [many(), split(), node("SequenceLength", &["parts"], "n"), {
        let cast = node("Cast", &["n"], "y");
        with(cast, [int("to", 1)])
    }];
    assert!(
        !fits(&length, &constants, 31),
        "16 parts, and the tensor that they are copied from"
    );
    assert!(fits(&length, &constants, 34));
    let joined = |is_new: i64| {
        let joined = with(
            node("ConcatFromSequence", &["parts"], "joined"),
            [int("axis", 0), int("new_axis", is_new)],
        );
        [
            node("SequenceConstruct", &["x"; 16], "parts"),
            joined,
            maximum("joined"),
        ]
    };
    for is_new in [0, 1] {
        assert!(!fits(&joined(is_new), &[], 31), "16 parts, and their copy");
        assert!(fits(&joined(is_new), &[], 36));
    }
}

fn direct(op_type: &str, inputs: usize, outputs: usize, attribute: Vec<Attribute>) -> Direct {
    let node = Node {
        input: (0..inputs).map(|at| format!("i{at}")).collect(),
        output: (0..outputs).map(|at| format!("o{at}")).collect(),
        name: op_type.to_owned(),
        op_type: op_type.to_owned(),
        domain: String::new(),
        opset: 22,
        attribute,
    };
    Direct::new(&node, &vec![None; inputs]).unwrap()
}

/// Returns whether a node with these inputs runs in `bytes` bytes.
fn runs_in(node: &Direct, inputs: &[Tensor], bytes: u64) -> bool {
    let mut inputs: ShortVec<Arc<Tensor>> = inputs.iter().cloned().map(Arc::new).collect();
    match node.run(&mut inputs, &mut Room::of_limit(bytes)) {
        Ok(_) => true,
        Err(Stop::Failed(error)) => {
            assert!(error.is::<NoRoom>(), "{error:#}");
            false
        }
        Err(Stop::Refused(error)) => panic!("{error:#}"),
    }
}

#[test]
fn casts_to_a_wider_type_are_asked_for() {
    let node = direct("Softmax", 1, 1, vec![]);
    let input = Tensor::zero_of(ElementType::F16, &[1 << 10]).unwrap();
    let facts = node
        .outputs(&Fact::of_values(&[Arc::new(input.clone())]))
        .unwrap();
    assert_eq!(facts.unwrap()[0].element_type, ElementType::F16);
    // Reserves the input and the output in FP32. The FP32 input is dropped before the FP16 output is
    // reserved.
    assert!(!runs_in(&node, std::slice::from_ref(&input), (8 << 10) - 1));
    assert!(runs_in(&node, &[input], 8 << 10));
}

#[test]
fn outputs_whose_size_depends_on_values_are_asked_for() {
    let ones = || Tensor::from_vec(&[1 << 10], vec![1i64; 1 << 10]).unwrap();
    let truths = |count: usize| {
        let truths = (0..1 << 10).map(|at| at < count).collect();
        Tensor::from_vec(&[1 << 10], truths).unwrap()
    };
    let numbers = Tensor::from_vec(&[1 << 10], (0..1 << 10).collect::<Vec<i64>>()).unwrap();
    let boxes = (0..100).flat_map(|at| [0.0, 2.0 * at as f32, 1.0, 2.0 * at as f32 + 1.0]);
    let boxes = Tensor::from_vec(&[1, 100, 4], boxes.collect()).unwrap();
    let scores = Tensor::from_vec(&[1, 1, 100], vec![0.5f32; 100]).unwrap();
    let limit = Tensor::vector(&[100i64]);
    let cases = [
        (direct("NonZero", 1, 1, vec![]), vec![ones()], 8 << 10),
        (direct("NonZero", 1, 1, vec![]), vec![truths(10)], 80),
        (direct("Compress", 2, 1, vec![]), vec![ones(), truths(100)], 800),
        // Sorting takes 48 bytes for each number.
        (direct("Unique", 1, 4, vec![]), vec![numbers], (48 + 32) << 10),
        (
            direct("Unique", 1, 4, vec![]),
            vec![ones()],
            ((48 + 8) << 10) + 24,
        ),
        (
            direct("NonMaxSuppression", 3, 1, vec![]),
            vec![boxes, scores, limit],
            2400,
        ),
    ];
    for (node, inputs, bytes) in cases {
        assert!(!runs_in(&node, &inputs, bytes - 1), "{}", node.op_type());
        assert!(runs_in(&node, &inputs, bytes), "{}", node.op_type());
    }
}

/// Checks that operators that copy strings reserve memory for their contents.
#[test]
fn contents_of_strings_are_asked_for() {
    const LENGTH: usize = 1 << 10;
    let texts = |count: usize| Tensor::vector(&vec!["ab".repeat(LENGTH / 2); count]);
    let delimiter = || Attribute {
        name: "delimiter".to_owned(),
        s: b"z".to_vec(),
        ..Attribute::default()
    };
    let sizes = Tensor::vector(&[100i64]);
    let places = Tensor::vector(&[0i64; 100]);
    let all = 100 * LENGTH as u64;
    let cases = [
        (
            direct("StringConcat", 2, 1, vec![]),
            vec![texts(100), texts(1)],
            2 * all,
        ),
        (
            direct("StringSplit", 1, 2, vec![delimiter()]),
            vec![texts(100)],
            all,
        ),
        (direct("Expand", 2, 1, vec![]), vec![texts(1), sizes.clone()], all),
        (direct("Tile", 2, 1, vec![]), vec![texts(1), sizes], all),
        (direct("Gather", 2, 1, vec![]), vec![texts(1), places], all),
        (direct("Unique", 1, 1, vec![]), vec![texts(1)], LENGTH as u64),
        (
            direct("Compress", 2, 1, vec![]),
            vec![texts(1), Tensor::vector(&[true])],
            LENGTH as u64,
        ),
        // Only the selected strings are copied.
        (
            direct("Compress", 2, 1, vec![]),
            vec![texts(100), Tensor::vector(&[true])],
            LENGTH as u64,
        ),
    ];
    for (node, inputs, bytes) in cases {
        assert!(!runs_in(&node, &inputs, bytes), "{}", node.op_type());
        assert!(runs_in(&node, &inputs, 2 * bytes), "{}", node.op_type());
    }
}
