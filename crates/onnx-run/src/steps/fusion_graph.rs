//! The nodes of a graph, and who makes and reads their values, for rules that fuse nodes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use onnx_tensor::{node::Node, prelude::*};

use crate::steps::{
    body::Step,
    dequantized::Dequantized,
    values::{Slot, Wires},
};

/// A step of a run, and its node if a kernel computes it.
pub(crate) type StepWithNode = (Step, Option<Node>);

/// A node that replaces several nodes.
pub(crate) struct Fused {
    pub(crate) node: Node,
    pub(crate) wires: Wires,
    /// Constants that the fused node reads, each with the index of its input.
    pub(crate) constants: Vec<(usize, Arc<Tensor>)>,
    /// The steps that the fused node replaces. The fused node takes the position of the last step.
    pub(crate) steps: Vec<usize>,
    /// Whether the fused node multiplies its input by the result of `node`.
    pub(crate) is_gated: bool,
}

pub(super) struct Graph<'g> {
    steps: &'g [StepWithNode],
    pub(super) constants: &'g HashMap<Slot, Arc<Tensor>>,
    /// Constants that a `DequantizeLinear` computes.
    pub(super) dequantized: &'g HashMap<Slot, Dequantized>,
    makers: HashMap<Slot, usize>,
    readers: HashMap<Slot, Vec<usize>>,
    outputs: HashSet<Slot>,
}

impl<'g> Graph<'g> {
    pub(super) fn of(
        steps: &'g [StepWithNode],
        outputs: &[Slot],
        constants: &'g HashMap<Slot, Arc<Tensor>>,
        dequantized: &'g HashMap<Slot, Dequantized>,
    ) -> Self {
        let (mut makers, mut readers) = (HashMap::new(), HashMap::<Slot, Vec<usize>>::new());
        for (at, (step, _)) in steps.iter().enumerate() {
            makers.extend(step.makes().into_iter().map(|slot| (slot, at)));
            for slot in step.reads() {
                readers.entry(slot).or_default().push(at);
            }
        }
        Self {
            steps,
            constants,
            dequantized,
            makers,
            readers,
            outputs: outputs.iter().copied().collect(),
        }
    }

    pub(super) fn node(&self, at: usize) -> Option<&'g Node> {
        self.steps[at].1.as_ref()
    }

    pub(super) fn op_type(&self, at: usize) -> &'g str {
        self.node(at).map_or("", |node| node.op_type.as_str())
    }

    pub(super) fn wires(&self, at: usize) -> Option<&'g Wires> {
        match &self.steps[at].0 {
            Step::Node(node) => Some(&node.wires),
            _ => None,
        }
    }

    pub(super) fn input(&self, at: usize, place: usize) -> Option<Slot> {
        self.wires(at)?.input(place)
    }

    pub(super) fn output(&self, at: usize) -> Option<Slot> {
        self.wires(at)?.outputs.first().copied()
    }

    /// Returns the node that computes a value, if its operator is `op_type`.
    pub(super) fn maker(&self, slot: Slot, op_type: &str) -> Option<usize> {
        let at = *self.makers.get(&slot)?;
        (self.op_type(at) == op_type).then_some(at)
    }

    /// Returns the only reader of a node's output, if its operator is `op_type`.
    pub(super) fn reader(&self, at: usize, op_type: &str) -> Option<usize> {
        match self.readers.get(&self.output(at)?)?.as_slice() {
            &[reader] if self.op_type(reader) == op_type => Some(reader),
            _ => None,
        }
    }

    /// Returns the only reader of a node's output, unless that is an output of the graph.
    pub(super) fn only_reader(&self, at: usize) -> Option<usize> {
        let output = self.output(at)?;
        match self.readers.get(&output)?.as_slice() {
            &[reader] if !self.outputs.contains(&output) => Some(reader),
            _ => None,
        }
    }

    /// Returns whether the values that `steps` produce, except those of the last step, are read only by
    /// `steps`.
    pub(super) fn is_closed(&self, steps: &[usize]) -> bool {
        let Some((_, inner)) = steps.split_last() else {
            return false;
        };
        let makes = |&at: &usize| self.steps[at].0.makes();
        inner.iter().flat_map(makes).all(|slot| {
            let readers = self.readers.get(&slot).map_or(&[][..], Vec::as_slice);
            !self.outputs.contains(&slot) && readers.iter().all(|reader| steps.contains(reader))
        })
    }

    /// Returns the value of a scalar floating-point constant.
    pub(super) fn number(&self, slot: Slot) -> Option<f64> {
        let constant = self.constants.get(&slot)?;
        let is_number = constant.rank() == 0 && constant.element_type().is_float();
        is_number.then(|| constant.cast_to_scalar::<f64>().ok())?
    }

    /// Returns the other input of a binary node if one of the two inputs is approximately `number`.
    pub(super) fn beside(&self, at: usize, number: f64) -> Option<Slot> {
        let (a, b) = (self.input(at, 0)?, self.input(at, 1)?);
        let is_it = |slot| {
            self.number(slot)
                .is_some_and(|found| (found / number - 1.0).abs() < 1e-3)
        };
        match (is_it(a), is_it(b)) {
            (_, true) => Some(a),
            (true, _) => Some(b),
            _ => None,
        }
    }

    /// Returns the input of a binary node that is not `slot`; `None` if both inputs are `slot`, or neither
    /// is.
    pub(super) fn other(&self, at: usize, slot: Slot) -> Option<Slot> {
        let (a, b) = (self.input(at, 0)?, self.input(at, 1)?);
        match (a == slot, b == slot) {
            (true, false) => Some(b),
            (false, true) => Some(a),
            _ => None,
        }
    }

    pub(super) fn fused(
        &self,
        op_type: &str,
        opset: i64,
        inputs: Vec<Slot>,
        steps: Vec<usize>,
    ) -> Option<Fused> {
        let last = *steps.last()?;
        let node = self.node(last)?;
        let (label, _) = node.name.rsplit_once('~')?;
        Some(Fused {
            node: Node {
                // Kernels only check whether inputs are present, so the names are arbitrary.
                input: inputs.iter().map(ToString::to_string).collect(),
                output: vec![node.output.first()?.clone()],
                name: format!("{label}~{op_type}"),
                op_type: op_type.to_owned(),
                domain: String::new(),
                opset,
                attribute: vec![],
            },
            wires: Wires {
                inputs: inputs.into_iter().map(Some).collect(),
                outputs: vec![self.output(last)?],
            },
            constants: vec![],
            steps,
            is_gated: false,
        })
    }
}
