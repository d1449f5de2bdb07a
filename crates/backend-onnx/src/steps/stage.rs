//! One stage: nodes that tract plans together, once it is known what the stage is given.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use oip_types::ServiceError;
use tract_hir::{
    infer::InferenceFact,
    internal::{InferenceOp, IntoArcTensor, IntoTValue, OutletId, ToDim, TypedFact, bail},
    ops::konst::Const,
    prelude::{DatumType, InferenceModel, TVec, Tensor, TractResult},
};

use super::values::{Failure, Slot, Value, Values};
use crate::{
    building::BuildContext,
    lowered::{OnnxGraph, OnnxNode, Port},
    ops,
    plan::Plan,
    tract_limit::TractLimit,
};

/// Plans that a stage keeps, and the memory that they may take by themselves.
const MAX_PLANS: usize = 16;
const MAX_PLAN_BYTES: u64 = 128 << 20;

/// Elements of a value that sizes follow from.
const MAX_VALUES: usize = 1 << 16;

/// Nodes that tract plans together.
pub(super) struct Stage {
    /// Its constants are shared by all plans that are made of it.
    graph: InferenceModel,
    inputs: Vec<Input>,
    outputs: Vec<Slot>,
    /// The most recently used last.
    plans: Mutex<Vec<(Key, Arc<Plan>)>>,
}

struct Input {
    slot: Slot,
    /// Whether sizes follow from the value.
    is_value_needed: bool,
}

/// What a plan is made for.
type Key = Vec<(DatumType, TVec<usize>, Option<Arc<Tensor>>)>;

impl Stage {
    pub(super) fn new(
        context: &BuildContext,
        nodes: Vec<OnnxNode>,
        slots: &HashMap<String, Slot>,
        names: &[String],
        constants: &HashMap<Slot, Arc<Tensor>>,
        made: Vec<Slot>,
        is_value_needed: impl Fn(Slot) -> bool,
    ) -> TractResult<Self> {
        let mut graph = OnnxGraph {
            node: nodes,
            ..OnnxGraph::default()
        };
        for slot in &made {
            let output = format!("{}~", names[slot.0]);
            graph.node.push(OnnxNode {
                input: vec![names[slot.0].clone()],
                output: vec![output.clone()],
                name: output.clone(),
                op_type: ops::OUTPUT.to_owned(),
                ..OnnxNode::default()
            });
            graph.output.push(Port {
                name: output,
                ..Port::default()
            });
        }
        let parsed = context.graph(&graph)?;
        let mut model = parsed.model;
        let mut inputs = Vec::new();
        let mut outlets: Vec<OutletId> = Vec::new();
        let mut seen = HashSet::new();
        for name in parsed.unresolved_inputs {
            if !seen.insert(name.clone()) {
                continue;
            }
            let (Some(&slot), Some(&outlet)) = (slots.get(&name), parsed.outlets_by_name.get(&name)) else {
                bail!("a value without a name");
            };
            match constants.get(&slot) {
                Some(constant) => give(&mut model, outlet, constant)?,
                None => {
                    outlets.push(outlet);
                    inputs.push(Input {
                        slot,
                        is_value_needed: is_value_needed(slot),
                    });
                }
            }
        }
        model.inputs = outlets;
        Ok(Self {
            graph: model,
            inputs,
            outputs: made,
            plans: Mutex::default(),
        })
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = Slot> + '_ {
        self.inputs.iter().map(|input| input.slot)
    }

    pub(super) fn outputs(&self) -> impl Iterator<Item = Slot> + '_ {
        self.outputs.iter().copied()
    }

    /// Runs the nodes, with a plan that there is for what they are given, or with a new one.
    pub(super) fn run(&self, values: &mut Values<'_>, labels: &[String]) -> Result<(), Failure> {
        let mut key: Key = Vec::with_capacity(self.inputs.len());
        let mut inputs = TVec::new();
        for input in &self.inputs {
            let value = values.tensor(input.slot)?;
            if input.is_value_needed && value.len() > MAX_VALUES {
                let error = ServiceError::invalid(format!(
                    "sizes follow from a value of {} elements, the limit is {MAX_VALUES}",
                    value.len()
                ));
                return Err(Failure::Unplanned(error));
            }
            let needed = input.is_value_needed.then(|| value.clone());
            key.push((value.datum_type(), value.shape().into(), needed));
            if !input.is_value_needed {
                inputs.push(value.into_tvalue());
            }
        }
        let plan = match self.find(&key) {
            Some(plan) => plan,
            None => {
                let plan = self.make(&key, labels).map_err(Failure::Unplanned)?;
                let plan = Arc::new(plan);
                self.keep(key, plan.clone());
                plan
            }
        };
        let outputs = plan.run(inputs, values.cancel).map_err(Failure::Failed)?;
        for (&slot, output) in self.outputs.iter().zip(outputs) {
            values.set(slot, Value::Tensor(output.into_arc_tensor()));
        }
        Ok(())
    }

    fn find(&self, key: &Key) -> Option<Arc<Plan>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let index = plans.iter().rposition(|(kept, _)| kept == key)?;
        let found = plans.remove(index);
        let plan = found.1.clone();
        plans.push(found);
        Some(plan)
    }

    fn keep(&self, key: Key, plan: Arc<Plan>) {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.push((key, plan));
        let mut bytes: u64 = plans.iter().map(|(_, plan)| plan.bytes()).sum();
        while plans.len() > 1 && (plans.len() > MAX_PLANS || bytes > MAX_PLAN_BYTES) {
            bytes -= plans.remove(0).1.bytes();
        }
    }

    /// Makes a plan, on this thread. tract panics at some shapes.
    fn make(&self, key: &Key, labels: &[String]) -> Result<Plan, ServiceError> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let prepare = || -> TractResult<InferenceModel> {
                let mut graph = self.graph.clone();
                let outlets = std::mem::take(&mut graph.inputs);
                for (outlet, (datum_type, shape, value)) in outlets.into_iter().zip(key) {
                    match value {
                        Some(value) => give(&mut graph, outlet, value)?,
                        None => {
                            let shape: TVec<_> = shape.iter().map(ToDim::to_dim).collect();
                            let fact = InferenceFact::dt_shape(*datum_type, shape);
                            graph.set_outlet_fact(outlet, fact)?;
                            graph.inputs.push(outlet);
                        }
                    }
                }
                Ok(graph)
            };
            let graph = prepare().map_err(|error| crate::plan::unprepared(error, labels))?;
            Plan::make(graph, labels)
        }));
        made.unwrap_or_else(|_| {
            Err(ServiceError::invalid("the runtime cannot prepare it").caused_by(TractLimit::default()))
        })
    }
}

/// Puts a constant in the place of an input.
fn give(graph: &mut InferenceModel, outlet: OutletId, value: &Arc<Tensor>) -> TractResult<()> {
    let op: Box<dyn InferenceOp> = Box::new(Const::new(value.clone())?);
    graph.node_mut(outlet.node).op = op;
    graph.set_outlet_fact(outlet, InferenceFact::from(&TypedFact::try_from(value.clone())?))
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").finish_non_exhaustive()
    }
}
