//! One stage: nodes that tract plans together, once it is known what the stage is given.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use oip_service::CancelToken;
use oip_types::ServiceError;
use tract_hir::{
    infer::InferenceFact,
    internal::{InferenceOp, IntoArcTensor, IntoTValue, OutletId, ToDim, TypedFact, bail},
    ops::konst::Const,
    prelude::{DatumType, InferenceModel, TValue, TVec, Tensor, TractResult},
};

use super::values::{Failure, Slot, Value, Values};
use crate::{
    building::BuildContext,
    cancelling,
    lowered::{OnnxGraph, OnnxNode, Port},
    ops,
    plan::{self, Plan},
    tract_limit::TractLimit,
};

/// Plans that a stage keeps, and the memory that they may take by themselves.
const MAX_PLANS: usize = 16;
const MAX_PLAN_BYTES: u64 = 128 << 20;

/// Elements of a value that sizes follow from.
const MAX_VALUES: usize = 1 << 16;

/// After so many plans for values that sizes follow from, one is tried in which they are open: a loop that counts has other values each
/// time, and planning takes far longer than most bodies run.
const MAX_CLOSED: usize = 8;

/// Nodes that tract plans together.
pub(super) struct Stage {
    /// Its constants are shared by all plans that are made of it.
    graph: InferenceModel,
    inputs: Vec<Input>,
    outputs: Vec<Slot>,
    /// The most recently used last.
    plans: Mutex<Vec<(Key, Arc<Plan>)>>,
    /// Plans that were made for values.
    closed: AtomicUsize,
    /// Whether a plan without values could not be made, or failed.
    needs_values: AtomicBool,
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
            closed: AtomicUsize::new(0),
            needs_values: AtomicBool::new(false),
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
        let mut all = TVec::with_capacity(self.inputs.len());
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
            all.push(value);
        }
        let outputs = match self.run_open(&key, &all, values, labels)? {
            Some(outputs) => outputs,
            None => {
                let plan = self.plan(&key, labels, values.cancel)?;
                let inputs = all.into_iter().zip(&self.inputs);
                let inputs = inputs.filter(|(_, input)| !input.is_value_needed);
                let inputs = inputs.map(|(value, _)| value.into_tvalue()).collect();
                plan.run(inputs, values.cancel).map_err(Failure::Failed)?
            }
        };
        for (&slot, output) in self.outputs.iter().zip(outputs) {
            values.set(slot, Value::Tensor(output.into_arc_tensor()));
        }
        Ok(())
    }

    /// Runs a plan for these shapes and any values, if there were many values and such a plan can be made.
    fn run_open(
        &self,
        key: &Key,
        all: &[Arc<Tensor>],
        values: &Values<'_>,
        labels: &[String],
    ) -> Result<Option<TVec<TValue>>, Failure> {
        if self.closed.load(Ordering::Relaxed) < MAX_CLOSED || self.needs_values.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let open = key
            .iter()
            .map(|(datum_type, shape, _)| (*datum_type, shape.clone(), None));
        let inputs = all.iter().map(|value| value.clone().into_tvalue()).collect();
        let outputs = match self.plan(&open.collect(), labels, values.cancel) {
            Ok(plan) => plan.run(inputs, values.cancel).map_err(Failure::Failed),
            Err(failure) => Err(failure),
        };
        match outputs {
            Ok(outputs) => Ok(Some(outputs)),
            Err(failure) if values.cancel.is_cancelled() => Err(failure),
            // The plan for the values says whether it is their fault.
            Err(_) => {
                self.needs_values.store(true, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    fn plan(&self, key: &Key, labels: &[String], cancel: &CancelToken) -> Result<Arc<Plan>, Failure> {
        if let Some(plan) = self.find(key) {
            return Ok(plan);
        }
        let made = {
            let _run = cancelling::start(cancel);
            self.make(key, labels)
        };
        let made = made.map_err(|error| match cancel.is_cancelled() {
            true => Failure::Failed(plan::ended(cancel)),
            false => Failure::Unplanned(error),
        });
        let plan = Arc::new(made?);
        if key.iter().any(|(_, _, value)| value.is_some()) {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
        self.keep(key.clone(), plan.clone());
        Ok(plan)
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
            let graph = prepare().map_err(|error| plan::unprepared(error, labels))?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::Signature;

    use super::*;
    use crate::{
        lower, made_up,
        steps::{
            Steps,
            body::{Body, Step},
        },
    };

    fn steps_of(fixture: &str) -> Steps {
        let model = made_up::fixture(fixture);
        let graph = model.graph.as_ref().unwrap();
        let signature = Signature::of(&model).unwrap();
        let lowered = lower::lower(graph, &signature.opsets).unwrap();
        Steps::new(signature, lowered).unwrap()
    }

    fn stages(body: &Body) -> Vec<&Stage> {
        let mut found = Vec::new();
        for step in &body.steps {
            match step {
                Step::Stage(stage) => found.push(stage),
                Step::Node(_) => {}
                Step::Control(node) => found.extend(node.op.bodies().into_iter().flat_map(stages)),
            }
        }
        found
    }

    #[test]
    fn a_loop_that_counts_makes_no_plan_for_each_iteration() {
        let steps = steps_of("loop_of_places");
        let rows = Tensor::from_shape(&[50, 1], &[0f32; 50]).unwrap();
        let inputs = [Tensor::from(50i64), rows].map(IntoTValue::into_tvalue);
        let outputs = steps.run(inputs.into_iter().collect(), &CancelToken::new(None));
        let counted: Vec<f32> = (0..50u8).map(f32::from).collect();
        let expected = Tensor::from_shape(&[50, 1], &counted).unwrap();
        assert_eq!(*outputs.unwrap()[0], expected);
        for stage in stages(&steps.body) {
            assert!(stage.closed.load(Ordering::Relaxed) <= MAX_CLOSED, "{stage:?}");
        }
    }

    /// Each value is given up after the last step that reads it, and none that is an answer.
    #[test]
    fn values_are_given_up_once_and_not_before() {
        fn check(body: &Body) {
            let mut given_up: HashSet<Slot> = HashSet::new();
            for (step, dropped) in body.steps.iter().zip(&body.dropped) {
                let reads = step.reads();
                assert!(reads.iter().all(|slot| !given_up.contains(slot)));
                assert!(dropped.iter().all(|&slot| given_up.insert(slot)));
                if let Step::Control(node) = step {
                    node.op.bodies().into_iter().for_each(check);
                }
            }
            assert!(body.outputs.iter().all(|slot| !given_up.contains(slot)));
            assert!(body.steps.is_empty() || !given_up.is_empty());
        }
        for name in ["loop_of_places", "sequence_of_lengths"] {
            check(&steps_of(name).body);
        }
    }

    #[test]
    fn a_stage_is_not_planned_for_a_request_that_has_ended() {
        let steps = steps_of("loop_of_places");
        let rows = Tensor::from_shape(&[2, 1], &[0f32; 2]).unwrap();
        let inputs = [Tensor::from(2i64), rows].map(IntoTValue::into_tvalue);
        steps
            .run(inputs.into_iter().collect(), &CancelToken::new(None))
            .unwrap();
        // What plans could be made for.
        let plans = stages(&steps.body).into_iter().flat_map(|stage| {
            let plans = std::mem::take(&mut *stage.plans.lock().unwrap());
            plans.into_iter().map(move |(key, _)| (stage, key))
        });
        let plans: Vec<(&Stage, Key)> = plans.collect();
        assert!(!plans.is_empty());
        let ended = CancelToken::new(None);
        ended.cancel();
        for (stage, key) in plans {
            let planned = stage.plan(&key, &steps.labels, &ended);
            assert!(matches!(planned, Err(Failure::Failed(_))), "{:?}", planned.err());
            let planned = stage.plan(&key, &steps.labels, &CancelToken::new(None));
            assert!(planned.is_ok(), "{:?}", planned.err());
        }
    }
}
