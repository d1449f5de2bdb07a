//! Models that no single plan serves: loops, sequences, branches of different ranks, sizes that depend on values.
//!
//! The graph is cut into stages. Within a stage all sizes follow from the shapes of its inputs and from the values of a few
//! small ones, so tract makes one plan for it when these are known; plans are kept for the next request. Between stages
//! stand loops, branches and what works on sequences, which are run here.
//!
//! Or each node is a step of its own ([`direct`]): the shapes are those that a request brings, and nothing is planned.
//!
//! [`split`] cuts into a [`body`], [`stage`] makes and runs plans, [`control`] and [`sequence`] are what stands between them.

mod body;
mod control;
mod direct;
mod infer;
mod rows;
mod sequence;
mod split;
mod stage;
mod values;

pub(crate) use values::Failure;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use oip_service::CancelToken;
use oip_types::ServiceError;
use onnx_graph::Signature;
use tract_hir::{
    internal::{IntoArcTensor, IntoTValue, Tensor},
    prelude::{TValue, TVec},
};

use crate::{
    cancelling,
    lower::Lowered,
    lowered::OnnxGraph,
    ops::{self, Fact},
    plan,
};
use body::Body;
use control::Run;
use infer::Known;
use values::{Slot, Value, Values};

/// A model that is run stage by stage.
#[derive(Debug)]
pub(crate) struct Steps {
    signature: Signature,
    body: Body,
    /// Constants of the file, inner graphs included.
    constants: HashMap<Slot, Arc<Tensor>>,
    labels: Vec<String>,
    slots: usize,
    /// What is known of the outputs of nodes that are computed by themselves.
    outputs: Option<Vec<Option<Fact>>>,
    is_bounded: bool,
}

/// Whether a graph has operators that only this module runs.
pub(crate) fn are_needed(graph: &OnnxGraph) -> bool {
    graph.node.iter().any(|node| {
        ops::is_stepwise(&node.op_type)
            || node
                .attribute
                .iter()
                .any(|attribute| attribute.g.as_ref().is_some_and(are_needed))
    })
}

/// Whether a graph has a branch that the values of its inputs decide, and not their shapes: such as one for each sampling rate. The
/// branches need not take the same shapes, and only the one that is taken is planned here.
pub(crate) fn branches_by_values(graph: &OnnxGraph) -> bool {
    let initializers: HashSet<&str> = graph.initializer.iter().map(|constant| &*constant.name).collect();
    let inputs = graph.input.iter().map(|input| &*input.name);
    let mut from_inputs: HashSet<&str> = inputs.filter(|name| !initializers.contains(name)).collect();
    for node in &graph.node {
        let mut given = node.input.iter().map(String::as_str);
        if node.op_type == "If" && given.next().is_some_and(|name| from_inputs.contains(name)) {
            return true;
        }
        let is_value = !matches!(node.op_type.as_str(), "Shape" | "Size");
        if is_value && node.input.iter().any(|name| from_inputs.contains(name.as_str())) {
            from_inputs.extend(node.output.iter().map(String::as_str));
        }
    }
    false
}

impl Steps {
    pub(crate) fn new(signature: Signature, lowered: Lowered) -> Result<Self, ServiceError> {
        Self::of(signature, lowered, false)
    }

    /// Runs node by node, without plans.
    pub(crate) fn direct(signature: Signature, lowered: Lowered) -> Result<Self, ServiceError> {
        Self::of(signature, lowered, true)
    }

    fn of(signature: Signature, lowered: Lowered, is_direct: bool) -> Result<Self, ServiceError> {
        let split = split::split(&lowered, is_direct)?;
        let outputs = is_direct.then(|| {
            let known = Known::of(&split.body, &signature.inputs, &split.constants, &split.names)
                .map_err(|error| plan::unprepared(error, &lowered.labels))?;
            Ok(split.body.outputs.iter().map(|&slot| known.fact(slot)).collect())
        });
        Ok(Self {
            outputs: outputs.transpose()?,
            signature,
            body: split.body,
            constants: split.constants,
            labels: lowered.labels,
            slots: split.slots,
            is_bounded: split.is_bounded,
        })
    }

    /// Whether each node is computed by itself.
    pub(crate) fn are_direct(&self) -> bool {
        self.outputs.is_some()
    }

    /// What is known of the outputs before a run.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = Option<&Fact>> {
        self.outputs.iter().flatten().map(Option::as_ref)
    }

    /// Whether the time of a run follows from the shapes of its inputs.
    pub(crate) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs the model.
    pub(crate) fn run(&self, inputs: TVec<TValue>, cancel: &CancelToken) -> Result<TVec<TValue>, Failure> {
        let mut values = Values::new(&self.constants, self.slots, cancel);
        for (&slot, input) in self.body.inputs.iter().zip(inputs) {
            values.set(slot, Value::Tensor(input.into_arc_tensor()));
        }
        let _run = cancelling::start(cancel);
        let labels = &self.labels;
        let mut run = Run { values, labels };
        run.body(&self.body)?;
        let outputs = self.body.outputs.iter();
        outputs
            .map(|&slot| Ok(run.values.tensor(slot)?.into_tvalue()))
            .collect()
    }
}
