//! A graph in executable form: nodes with kernels, and control flow between them.

use std::collections::{BTreeMap, BTreeSet};

use onnx_tensor::prelude::*;

use crate::lowered::{DeclaredType, OnnxGraph, OnnxNode};
use crate::steps::{
    direct::DirectNode,
    sequence::SequenceOp,
    values::{Slot, Wires},
};
use onnx_tensor::{node::Attributes, node::Node};

/// A graph as a list of steps: the main graph, or the body of a loop or branch.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) inputs: Vec<Slot>,
    pub(crate) outputs: Vec<Slot>,
    /// Declared element types and dimensions of the outputs; 0 for a free dimension.
    pub(crate) declared: Vec<Option<DeclaredType>>,
    pub(crate) steps: Vec<Step>,
    /// For each step, the sorted slots of the values that no later step reads.
    pub(crate) dropped: Vec<Vec<Slot>>,
}

#[derive(Debug)]
pub(crate) enum Step {
    Node(DirectNode),
    Control(ControlNode),
}

/// A node with control flow, which runs subgraphs.
#[derive(Debug)]
pub(crate) struct ControlNode {
    pub(crate) label: String,
    pub(crate) op: Control,
    pub(crate) wires: Wires,
}

/// A control flow operator.
#[derive(Debug)]
pub(crate) enum Control {
    Loop(Body),
    If { then: Body, other: Body },
    Scan(Scan),
    Sequence(SequenceOp),
}

/// `Scan`: runs a body for each slice of some of its inputs.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) body: Body,
    pub(crate) inputs: Vec<Along>,
    pub(crate) outputs: Vec<Along>,
}

/// Axis and direction along which a `Scan` slices an input or stacks an output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Along {
    pub(crate) axis: i64,
    pub(crate) is_reverse: bool,
}

impl Control {
    /// Converts a control flow node; `cut` converts its subgraphs.
    pub(crate) fn of(
        OnnxNode { node, graphs }: &OnnxNode,
        mut cut: impl FnMut(&OnnxGraph) -> Result<Body>,
    ) -> Result<Option<Self>> {
        let graph = |name: &str| -> Result<&OnnxGraph> {
            let graph = graphs.iter().find(|(attribute, _)| attribute == name);
            let (_, graph) = graph.with_context(|| format!("{}: no graph {name}", node.name))?;
            Ok(graph)
        };
        let control = match node.op_type.as_str() {
            "Loop" => {
                let body = cut(graph("body")?)?;
                let carried = node.input.len().saturating_sub(2);
                ensure!(
                    body.inputs.len() == carried + 2
                        && body.outputs.len() == node.output.len() + 1
                        && node.output.len() >= carried,
                    "{}: the body has {} inputs and {} outputs for a loop of {carried} values and {} outputs",
                    node.name,
                    body.inputs.len(),
                    body.outputs.len(),
                    node.output.len()
                );
                Self::Loop(body)
            }
            "If" => {
                let (then, other) = (cut(graph("then_branch")?)?, cut(graph("else_branch")?)?);
                ensure!(
                    then.outputs.len() == node.output.len() && other.outputs.len() == node.output.len(),
                    "{}: branches with other numbers of outputs",
                    node.name
                );
                Self::If { then, other }
            }
            "Scan" => Self::Scan(Scan::of(node, cut(graph("body")?)?)?),
            _ => match SequenceOp::of(node)? {
                Some(op) => Self::Sequence(op),
                None => return Ok(None),
            },
        };
        Ok(Some(control))
    }

    pub(crate) fn bodies(&self) -> Vec<&Body> {
        match self {
            Self::Loop(body) => vec![body],
            Self::If { then, other } => vec![then, other],
            Self::Scan(scan) => vec![&scan.body],
            Self::Sequence(_) => vec![],
        }
    }
}

impl Scan {
    fn of(node: &Node, body: Body) -> Result<Self> {
        let attributes = Attributes(node);
        let scanned = usize::try_from(attributes.int("num_scan_inputs", 0))?;
        ensure!(
            scanned <= node.input.len() && body.inputs.len() == node.input.len(),
            "{}: {} inputs for a body of {}",
            node.name,
            node.input.len(),
            body.inputs.len()
        );
        let states = node.input.len() - scanned;
        ensure!(
            body.outputs.len() == node.output.len() && states <= node.output.len(),
            "{}: {} outputs for a body of {}",
            node.name,
            node.output.len(),
            body.outputs.len()
        );
        let along = |count: usize, axes: &str, directions: &str| -> Vec<Along> {
            let (axes, directions) = (attributes.ints(axes), attributes.ints(directions));
            let along = |index: usize| Along {
                axis: axes.get(index).copied().unwrap_or(0),
                is_reverse: directions.get(index).is_some_and(|&direction| direction == 1),
            };
            (0..count).map(along).collect()
        };
        Ok(Self {
            inputs: along(scanned, "scan_input_axes", "scan_input_directions"),
            outputs: along(
                node.output.len() - states,
                "scan_output_axes",
                "scan_output_directions",
            ),
            body,
        })
    }
}

impl Step {
    /// Returns the slots that the step reads. They may include slots of its subgraphs.
    pub(crate) fn reads(&self) -> Vec<Slot> {
        match self {
            Self::Node(node) => node.wires.inputs.iter().flatten().copied().collect(),
            Self::Control(node) => {
                let inner = node.op.bodies().into_iter().flat_map(Body::needs);
                node.wires.inputs.iter().flatten().copied().chain(inner).collect()
            }
        }
    }

    /// Returns the slots that hold values after the step: its outputs, and the slots in which its subgraphs
    /// leave values.
    pub(crate) fn makes(&self) -> Vec<Slot> {
        match self {
            Self::Node(node) => node.wires.outputs.clone(),
            Self::Control(node) => {
                let inner = node.op.bodies().into_iter().flat_map(Body::made);
                node.wires.outputs.iter().copied().chain(inner).collect()
            }
        }
    }
}

/// For each step, returns the graph's values that no later step reads, sorted.
pub(crate) fn dropped(inputs: &[Slot], steps: &[Step], outputs: &[Slot]) -> Vec<Vec<Slot>> {
    let mut last: BTreeMap<Slot, usize> = inputs.iter().map(|&slot| (slot, 0)).collect();
    for (at, step) in steps.iter().enumerate() {
        for slot in step.reads() {
            // A slot without an entry belongs to an outer graph.
            if let Some(last) = last.get_mut(&slot) {
                *last = at;
            }
        }
        last.extend(step.makes().into_iter().map(|slot| (slot, at)));
    }
    let outputs: BTreeSet<Slot> = outputs.iter().copied().collect();
    let mut dropped = vec![Vec::new(); steps.len()];
    for (slot, at) in last {
        if !outputs.contains(&slot)
            && let Some(dropped) = dropped.get_mut(at)
        {
            dropped.push(slot);
        }
    }
    dropped
}

impl Body {
    /// Returns the body's own slots that hold values after a run: outputs, and inputs that no step reads.
    fn made(&self) -> Vec<Slot> {
        let steps = self.steps.iter().flat_map(Step::makes);
        steps.chain(self.inputs.iter().copied()).collect()
    }

    /// Returns the slots of outer graphs that a run of this graph may read.
    pub(crate) fn needs(&self) -> BTreeSet<Slot> {
        let mut needs: BTreeSet<Slot> = self.outputs.iter().copied().collect();
        let mut made: BTreeSet<Slot> = self.inputs.iter().copied().collect();
        for step in &self.steps {
            match step {
                Step::Node(node) => {
                    needs.extend(node.wires.inputs.iter().flatten());
                    made.extend(&node.wires.outputs);
                }
                Step::Control(node) => {
                    needs.extend(node.wires.inputs.iter().flatten());
                    made.extend(&node.wires.outputs);
                    for body in node.op.bodies() {
                        needs.extend(body.needs());
                    }
                }
            }
        }
        needs.difference(&made).copied().collect()
    }
}
