//! Tests that every operator ends soon after cancellation, even for large inputs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use onnx_graph::proto::{NodeProto, TensorProto, TensorShapeProto, ValueInfoProto, type_proto};
use onnx_operators::Operator;
use onnx_tensor::prelude::*;

use crate::operators::cases::{COUNT, Case, Ready, case, more_cases};
use crate::operators::node::Stop;
use crate::operators::registry::rows;
use crate::{
    RunErrorKind, Session,
    test_models::{body, int, integer, ints, model, node, with},
};
use onnx_tensor::{
    cancelling::{Cancellation, is_cancelled},
    room::Room,
    testing::{Counter, while_counted},
};

/// Number of steps within which an operator must check for cancellation, on average over its run. A run takes
/// one step per element that is read or written, unless the case sets a different number.
const WORK: usize = 1 << 18;

/// Operators that need not check for cancellation.
const EXEMPT: &[(&str, &str)] = &[
    ("Constant", "is absorbed before a run"),
    ("Flatten", "returns its input in another shape"),
    ("Identity", "returns its input"),
    ("If", "is computed by the steps"),
    ("Optional", "is computed by the steps"),
    ("OptionalGetElement", "is computed by the steps"),
    ("OptionalHasElement", "is computed by the steps"),
    ("Ranked", "returns its input"),
    ("Reshape", "returns its input in another shape"),
    ("SameShape", "returns its input"),
    ("SequenceAt", "is computed by the steps"),
    ("SequenceConstruct", "is computed by the steps"),
    ("SequenceEmpty", "is computed by the steps"),
    ("SequenceErase", "is computed by the steps"),
    ("SequenceInsert", "is computed by the steps"),
    ("SequenceLength", "is computed by the steps"),
    ("Shape", "returns a number for each dimension"),
    ("Size", "returns one number"),
    ("Squeeze", "returns its input in another shape"),
    ("Unsqueeze", "returns its input in another shape"),
];

/// Runs the node three times: to its end, cancelled at its first check, and cancelled after half of its
/// checks. Returns a message if the node checks too rarely, or if a cancelled run does not end as cancelled.
fn fault(case: Case) -> Option<String> {
    let work = case.work;
    let Ready { direct, inputs } = match case.ready() {
        Ok(ready) => ready,
        Err(error) => return Some(format!("cannot be created: {error:#}")),
    };
    let run = |most| {
        // Copies the inputs, since a run may overwrite those without other references.
        let mut inputs = inputs.iter().map(|input| Arc::new((**input).clone())).collect();
        while_counted(most, || direct.run(&mut inputs, &mut Room::new()))
    };
    let (made, checks) = run(u64::MAX);
    let made = match made {
        Ok(made) => made,
        Err(Stop::Failed(error)) => return Some(format!("failed: {error:#}")),
        Err(Stop::Refused(error)) => return Some(format!("was refused: {error:#}")),
    };
    let values = || inputs.iter().chain(&made);
    let work = work.unwrap_or_else(|| values().map(|value| value.len()).sum());
    if work < COUNT {
        return Some(format!("is a case of {work} steps only"));
    }
    let least = (work / WORK) as u64;
    if checks < least {
        return Some(format!("makes {checks} checks in {work} steps, expected {least}"));
    }
    for most in [0, checks / 2] {
        match run(most) {
            (Err(Stop::Failed(error)), found) if is_cancelled(&error) && found == most + 1 => {}
            (Err(Stop::Failed(error)), found) if is_cancelled(&error) => {
                return Some(format!("makes {found} checks, cancelled at {}", most + 1));
            }
            (Err(Stop::Failed(error) | Stop::Refused(error)), _) => {
                return Some(format!("failed when cancelled: {error:#}"));
            }
            (Ok(_), _) => return Some(format!("ran to its end, cancelled after {most} checks")),
        }
    }
    None
}

/// A graph around an operator that the steps compute, and the shape of its input `x`.
struct Graph {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    shape: Vec<usize>,
}

/// Builds a graph for an operator that the steps compute.
fn graph(operator: &Operator) -> Option<Graph> {
    let x = |shape: &[usize], nodes: Vec<NodeProto>| Graph {
        nodes,
        constants: vec![],
        shape: shape.to_vec(),
    };
    Some(match operator.name {
        "ConcatFromSequence" => x(
            &[COUNT],
            vec![
                node("SequenceConstruct", &["x", "x"], "s"),
                with(
                    node("ConcatFromSequence", &["s"], "y"),
                    [int("axis", 1), int("new_axis", 1)],
                ),
            ],
        ),
        "SplitToSequence" => Graph {
            constants: vec![integer("at", 7)],
            ..x(
                &[2048, 1024],
                vec![
                    with(node("SplitToSequence", &["x"], "s"), [int("axis", 1)]),
                    node("SequenceAt", &["s", "at"], "y"),
                ],
            )
        },
        "Scan" => {
            let row = model(vec![node("Identity", &["row"], "made")], &[-1], &[-1], vec![]).graph;
            let mut row = row.unwrap();
            "row".clone_into(&mut row.input[0].name);
            "made".clone_into(&mut row.output[0].name);
            let scan = [
                int("num_scan_inputs", 1),
                body(row),
                ints("scan_output_axes", &[1]),
            ];
            x(&[2, COUNT], vec![with(node("Scan", &["x"], "y"), scan)])
        }
        "Loop" => {
            let nodes = vec![
                node("Identity", &["go"], "goes"),
                node("Identity", &["x"], "made"),
            ];
            let mut rows = model(nodes, &[-1], &[-1], vec![]).graph.unwrap();
            let port = |port: &ValueInfoProto, name: &str, element_type: i32, is_scalar: bool| {
                let mut port = port.clone();
                name.clone_into(&mut port.name);
                if let Some(type_proto::Value::TensorType(tensor)) =
                    port.r#type.as_mut().and_then(|found| found.value.as_mut())
                {
                    tensor.elem_type = element_type;
                    if is_scalar {
                        tensor.shape = Some(TensorShapeProto::default());
                    }
                }
                port
            };
            let (input, output) = (rows.input[0].clone(), rows.output[0].clone());
            rows.input = vec![port(&input, "i", 7, true), port(&input, "go", 9, true)];
            rows.output = vec![port(&input, "goes", 9, true), port(&output, "made", 1, false)];
            Graph {
                constants: vec![integer("count", 2)],
                ..x(
                    &[COUNT],
                    vec![with(node("Loop", &["count", ""], "y"), [body(rows)])],
                )
            }
        }
        _ => return None,
    })
}

impl Graph {
    /// Runs the graph as [`fault`] runs a node. The graph copies its input twice; only a few checks are
    /// between steps.
    fn fault(self) -> Option<String> {
        const LEAST: u64 = 6 * (COUNT / WORK) as u64;
        let dims = vec![-1; self.shape.len()];
        let session = Session::prepare(&model(self.nodes, &dims, &[-1, -1], self.constants), |_| Ok(()));
        let session = match session {
            Ok(session) => session.with_threads(1),
            Err(error) => return Some(format!("cannot be created: {error}")),
        };
        let run = |most: u64| {
            let token = Arc::new(Counter::new(most));
            let cancellation: Arc<dyn Cancellation> = token.clone();
            let made = session.run_until([Tensor::zero::<f32>(&self.shape).unwrap()], &cancellation);
            (made.map_err(|error| error.kind()), token.checks())
        };
        match run(u64::MAX) {
            (Ok(_), checks) if checks >= LEAST => {}
            (made, checks) => {
                let made = made.map(|_| ());
                return Some(format!("makes {checks} checks, expected {LEAST}: {made:?}"));
            }
        }
        match run(LEAST - 1) {
            (Err(RunErrorKind::Cancelled), LEAST) => None,
            (made, checks) => {
                let made = made.map(|_| ());
                Some(format!("makes {checks} checks, cancelled at {LEAST}: {made:?}"))
            }
        }
    }
}

#[test]
fn every_operator_checks_for_cancellation_all_the_way() {
    let rows: Vec<&'static Operator> = rows().collect();
    let fault = |row: &'static Operator| {
        let is_exempt = EXEMPT.iter().any(|(name, _)| *name == row.name);
        if let Some(graph) = graph(row) {
            return graph.fault();
        }
        match case(row) {
            None if is_exempt => None,
            None => Some("no case".to_owned()),
            Some(_) if is_exempt => Some("exempt, and a case".to_owned()),
            Some(case) => std::iter::once(case).chain(more_cases(row)).find_map(fault),
        }
    };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut faults = Vec::new();
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            faults.extend(fault(row).map(|fault| format!("{}: {fault}", row.name)));
        }
        faults
    };
    let faults: Vec<String> = thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        rows.len(),
        faults.join("\n")
    );
}
