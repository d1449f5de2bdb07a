//! Makes a list of nodes of a graph, each ready to be computed for inputs of any shapes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use oip_types::ServiceError;
use tract_hir::internal::{SymbolScope, Tensor, TractResult};

use super::{
    body::{Body, Control, ControlNode, Step, dropped},
    direct::DirectNode,
    fuse,
    values::{Slot, Wires},
};
use crate::{
    building::BuildContext,
    lower::Lowered,
    lowered::{OnnxGraph, OnnxNode},
    ops, plan,
};

/// A graph that is ready to run.
pub(super) struct Prepared {
    pub(super) body: Body,
    pub(super) constants: HashMap<Slot, Arc<Tensor>>,
    pub(super) slots: usize,
    /// In which operators name what they do not know.
    pub(super) names: SymbolScope,
    /// Whether all sizes follow from the shapes of the inputs, and nothing is repeated or chosen by values.
    pub(super) is_bounded: bool,
}

/// Prepares a lowered model.
pub(super) fn prepare(lowered: &Lowered) -> Result<Prepared, ServiceError> {
    let Lowered { graph, labels } = lowered;
    let mut preparer = Preparer {
        context: ops::context(),
        slots: HashMap::new(),
        count: 0,
        constants: HashMap::new(),
        statics: HashSet::new(),
        is_bounded: true,
    };
    let body = preparer
        .graph(graph)
        .map_err(|error| plan::unprepared(error, labels))?;
    let needed = body.needs();
    preparer.constants.retain(|slot, _| needed.contains(slot));
    Ok(Prepared {
        body,
        constants: preparer.constants,
        slots: preparer.count,
        names: preparer.context.symbols,
        is_bounded: preparer.is_bounded,
    })
}

struct Preparer {
    context: BuildContext,
    /// Names are used once in the whole model; those of what is only passed on stand for what it was before.
    slots: HashMap<String, Slot>,
    count: usize,
    constants: HashMap<Slot, Arc<Tensor>>,
    /// Values that follow from shapes and constants.
    statics: HashSet<Slot>,
    is_bounded: bool,
}

impl Preparer {
    fn graph(&mut self, graph: &OnnxGraph) -> TractResult<Body> {
        for constant in &graph.initializer {
            let slot = self.slot(&constant.name);
            self.constants.insert(slot, constant.value.clone());
        }
        let inputs: Vec<Slot> = graph.input.iter().map(|input| self.slot(&input.name)).collect();
        let mut nodes = Vec::with_capacity(graph.node.len());
        for node in &graph.node {
            match node.op_type.as_str() {
                "Identity" | ops::OUTPUT => {
                    let slot = self.slot(&node.input[0]);
                    self.slots.insert(node.output[0].clone(), slot);
                }
                "Constant" => {
                    let slot = self.slot(&node.output[0]);
                    self.constants.insert(slot, ops::constant(node)?);
                }
                _ => nodes.extend(self.step(node)?),
            }
        }
        let outputs = graph.output.iter().map(|output| self.slot(&output.name));
        let outputs: Vec<Slot> = outputs.collect();
        let steps = self.fused(nodes, &outputs)?;
        Ok(Body {
            dropped: dropped(&inputs, &steps, &outputs),
            inputs,
            outputs,
            declared: graph
                .output
                .iter()
                .map(|output| output.declared.clone())
                .collect(),
            steps,
        })
    }

    /// The steps, those together that are computed in one.
    fn fused(&mut self, nodes: Vec<fuse::Prepared>, outputs: &[Slot]) -> TractResult<Vec<Step>> {
        let mut steps: Vec<Option<Step>> = Vec::with_capacity(nodes.len());
        let found = fuse::fused(&nodes, outputs, &self.constants)?;
        steps.extend(nodes.into_iter().map(|(step, _)| Some(step)));
        for fuse::Fused {
            node,
            mut wires,
            constants,
            steps: replaced,
        } in found
        {
            for (place, constant) in constants {
                let slot = self.new_slot();
                self.constants.insert(slot, Arc::new(constant));
                wires.inputs.resize(wires.inputs.len().max(place + 1), None);
                wires.inputs[place] = Some(slot);
            }
            let node = DirectNode::new(&self.context, &node, wires, &self.constants)?;
            replaced.iter().for_each(|&at| steps[at] = None);
            if let Some(&last) = replaced.last() {
                steps[last] = Some(Step::Node(node));
            }
        }
        Ok(steps.into_iter().flatten().collect())
    }

    /// A node, if it is not computed already.
    fn step(&mut self, node: &OnnxNode) -> TractResult<Option<fuse::Prepared>> {
        let given = node.input.iter();
        let given = given.map(|name| (!name.is_empty()).then(|| self.slot(name)));
        let wires = Wires {
            inputs: given.collect(),
            outputs: node.output.iter().map(|name| self.slot(name)).collect(),
        };
        if let Some(op) = Control::of(node, |graph| self.graph(graph))? {
            self.is_bounded = false;
            let label = node.name.clone();
            let control = ControlNode { label, op, wires };
            return Ok(Some((Step::Control(control), None)));
        }
        self.follow(node, &wires);
        let direct = DirectNode::new(&self.context, node, wires, &self.constants)?;
        match direct.folded(&self.constants)? {
            Some(outputs) => self.constants.extend(outputs),
            None => return Ok(Some((Step::Node(direct), Some(node.clone())))),
        }
        Ok(None)
    }

    /// Sees where sizes come from.
    fn follow(&mut self, node: &OnnxNode, wires: &Wires) {
        let is_static = |slot: &Slot| self.statics.contains(slot) || self.constants.contains_key(slot);
        let mut shaping = ops::shaping_inputs(&node.op_type).filter_map(|index| wires.input(index));
        self.is_bounded &= !ops::gives_unknown_sizes(&node.op_type) && shaping.all(|slot| is_static(&slot));
        let gives_sizes = matches!(node.op_type.as_str(), "Shape" | "Size");
        if gives_sizes || wires.inputs.iter().flatten().all(is_static) {
            self.statics.extend(&wires.outputs);
        }
    }

    fn slot(&mut self, name: &str) -> Slot {
        if let Some(&slot) = self.slots.get(name) {
            return slot;
        }
        let slot = self.new_slot();
        self.slots.insert(name.to_owned(), slot);
        slot
    }

    fn new_slot(&mut self) -> Slot {
        self.count += 1;
        Slot(self.count - 1)
    }
}
