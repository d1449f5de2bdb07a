//! Cuts a graph into stages, so that within each all sizes are known before it runs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use oip_types::ServiceError;
use tract_hir::internal::{Tensor, TractResult};

use super::{
    body::{Body, Control, ControlNode, Step, dropped},
    stage::Stage,
    values::{Slot, Wires},
};
use crate::{
    building::BuildContext,
    lower::Lowered,
    lowered::{OnnxGraph, OnnxNode},
    ops, plan,
};

pub(super) struct Split {
    pub(super) body: Body,
    pub(super) constants: HashMap<Slot, Arc<Tensor>>,
    pub(super) slots: usize,
}

/// Cuts the graph of a lowered model.
pub(super) fn split(lowered: &Lowered) -> Result<Split, ServiceError> {
    let Lowered { graph, labels } = lowered;
    let mut splitter = Splitter {
        context: ops::context(),
        slots: HashMap::new(),
        names: Vec::new(),
        constants: HashMap::new(),
    };
    let body = splitter
        .graph(graph)
        .map_err(|error| plan::unprepared(error, labels))?;
    Ok(Split {
        body,
        constants: splitter.constants,
        slots: splitter.names.len(),
    })
}

struct Splitter {
    context: BuildContext,
    /// Names are used once in the whole model; those of what is only passed on stand for what it was before.
    slots: HashMap<String, Slot>,
    names: Vec<String>,
    constants: HashMap<Slot, Arc<Tensor>>,
}

/// What is known of a value when the graph is cut.
#[derive(Clone, Copy)]
struct Known {
    /// The first phase that can use the value.
    phase: usize,
    /// The phase whose stage makes it, `None` for what is run here.
    made: Option<usize>,
    /// Whether the value follows from shapes and constants.
    is_static: bool,
}

/// The first and the last phase that uses a value.
#[derive(Default)]
struct Users(HashMap<Slot, (usize, usize)>);

impl Users {
    fn add(&mut self, slot: Slot, phase: usize) {
        let (first, last) = self.0.entry(slot).or_insert((phase, phase));
        (*first, *last) = ((*first).min(phase), (*last).max(phase));
    }

    /// Whether a value that is made in a phase is used in another one.
    fn are_outside(&self, slot: Slot, phase: usize) -> bool {
        self.0.get(&slot).is_some_and(|&users| users != (phase, phase))
    }
}

impl Splitter {
    fn graph(&mut self, graph: &OnnxGraph) -> TractResult<Body> {
        for constant in &graph.initializer {
            let slot = self.slot(&constant.name);
            self.constants.insert(slot, constant.value.clone());
        }
        let inputs: Vec<Slot> = graph.input.iter().map(|input| self.slot(&input.name)).collect();
        // Values from outside of this graph are there before it begins: phase 0, and stages begin at 1.
        let mut known: HashMap<Slot, Known> = HashMap::new();
        let mut stages: BTreeMap<usize, Vec<OnnxNode>> = BTreeMap::new();
        let mut controls: BTreeMap<usize, Vec<ControlNode>> = BTreeMap::new();
        let mut users = Users::default();
        let mut values_needed: BTreeSet<(usize, Slot)> = BTreeSet::new();
        for node in &graph.node {
            match node.op_type.as_str() {
                "Identity" | ops::OUTPUT => {
                    let slot = self.slot(&node.input[0]);
                    self.slots.insert(node.output[0].clone(), slot);
                    continue;
                }
                "Constant" => {
                    let slot = self.slot(&node.output[0]);
                    let value = ops::constant(node)?;
                    self.constants.insert(slot, value);
                    continue;
                }
                _ => {}
            }
            let node_inputs: Vec<Option<Slot>> = node
                .input
                .iter()
                .map(|name| (!name.is_empty()).then(|| self.slot(name)))
                .collect();
            let outputs: Vec<Slot> = node.output.iter().map(|name| self.slot(name)).collect();
            let lookup = |slot: Slot| known.get(&slot).copied();
            if let Some(op) = Control::of(node, |graph| self.graph(graph))? {
                let mut needs: BTreeSet<Slot> = node_inputs.iter().flatten().copied().collect();
                for body in op.bodies() {
                    needs.extend(body.needs());
                }
                let phases = needs
                    .iter()
                    .filter_map(|&slot| lookup(slot))
                    .map(|known| known.phase);
                let phase = phases.max().unwrap_or(1);
                for &output in &outputs {
                    known.insert(
                        output,
                        Known {
                            phase: phase + 1,
                            made: None,
                            is_static: false,
                        },
                    );
                }
                // Whatever makes them, stages included, must give them out.
                needs.into_iter().for_each(|slot| users.add(slot, usize::MAX));
                let label = node.name.clone();
                controls.entry(phase).or_default().push(ControlNode {
                    label,
                    op,
                    wires: Wires {
                        inputs: node_inputs,
                        outputs,
                    },
                });
                continue;
            }
            let given = node_inputs.iter().flatten().copied();
            let mut phase = given
                .clone()
                .filter_map(lookup)
                .map(|known| known.phase)
                .max()
                .unwrap_or(1);
            let shaping: Vec<Slot> = ops::shaping_inputs(&node.op_type)
                .filter_map(|index| node_inputs.get(index).copied().flatten())
                .collect();
            let is_open = |slot: &Slot| {
                lookup(*slot).is_some_and(|known| known.made == Some(phase) && !known.is_static)
            };
            if shaping.iter().any(is_open) {
                phase += 1;
            }
            for slot in given.clone() {
                if lookup(slot).is_none_or(|known| known.made != Some(phase))
                    && !self.constants.contains_key(&slot)
                {
                    users.add(slot, phase);
                }
            }
            for slot in shaping {
                if lookup(slot).is_none_or(|known| known.made != Some(phase))
                    && !self.constants.contains_key(&slot)
                {
                    values_needed.insert((phase, slot));
                }
            }
            let follows = |slot: Slot| {
                self.constants.contains_key(&slot)
                    || lookup(slot).is_some_and(|known| known.is_static && known.made == Some(phase))
            };
            let is_static = matches!(node.op_type.as_str(), "Shape" | "Size") || given.clone().all(follows);
            let after = phase + usize::from(ops::gives_unknown_sizes(&node.op_type));
            for &output in &outputs {
                known.insert(
                    output,
                    Known {
                        phase: after,
                        made: Some(phase),
                        is_static,
                    },
                );
            }
            let mut renamed = node.clone();
            for (name, slot) in renamed.input.iter_mut().zip(&node_inputs) {
                if let Some(slot) = slot {
                    name.clone_from(&self.names[slot.0]);
                }
            }
            stages.entry(phase).or_default().push(renamed);
        }
        let outputs: Vec<Slot> = graph
            .output
            .iter()
            .map(|output| self.slot(&output.name))
            .collect();
        outputs.iter().for_each(|&slot| users.add(slot, usize::MAX));

        let mut phases: BTreeSet<usize> = stages.keys().copied().collect();
        phases.extend(controls.keys());
        let mut steps = Vec::new();
        for phase in phases {
            if let Some(nodes) = stages.remove(&phase) {
                let made: Vec<Slot> = nodes
                    .iter()
                    .flat_map(|node| &node.output)
                    .map(|name| self.slots[name])
                    .filter(|&slot| users.are_outside(slot, phase))
                    .collect();
                let is_value_needed = |slot: Slot| values_needed.contains(&(phase, slot));
                let stage = Stage::new(
                    &self.context,
                    nodes,
                    &self.slots,
                    &self.names,
                    &self.constants,
                    made,
                    is_value_needed,
                )?;
                steps.push(Step::Stage(stage));
            }
            steps.extend(controls.remove(&phase).into_iter().flatten().map(Step::Control));
        }
        let declared = graph.output.iter().map(|output| output.declared.clone());
        Ok(Body {
            dropped: dropped(&inputs, &steps, &outputs),
            inputs,
            outputs,
            declared: declared.collect(),
            steps,
        })
    }

    fn slot(&mut self, name: &str) -> Slot {
        if let Some(&slot) = self.slots.get(name) {
            return slot;
        }
        let slot = Slot(self.names.len());
        self.names.push(name.to_owned());
        self.slots.insert(name.to_owned(), slot);
        slot
    }
}
