//! Models that no single plan serves: loops, sequences, branches of different ranks, sizes that depend on values.
//!
//! The graph is cut into stages. Within a stage all sizes follow from the shapes of its inputs and from the values of a few
//! small ones, so tract makes one plan for it when these are known; plans are kept for the next request. Between stages
//! stand loops, branches and what works on sequences, which are run here.
//!
//! [`split`] cuts into a [`body`], [`stage`] makes and runs plans, [`control`] and [`sequence`] are what stands between them.
//!
//! For the runtime `built-in` each node is a step of its own ([`direct`]): the shapes are those that a request brings, and nothing is
//! planned. [`prepare`] makes the body, [`fuse`] finds nodes that are one, and [`infer`] says what is known of the values before a run.

mod body;
mod control;
mod direct;
mod fuse;
mod infer;
mod prepare;
mod rows;
mod sequence;
mod split;
mod stage;
mod values;

pub(crate) use values::Failure;

use std::collections::HashSet;

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use onnx_graph::Signature;
use tract_hir::{
    internal::{IntoArcTensor, IntoTValue},
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
use prepare::Prepared;
use values::{Constants, Value, Values};

/// A model that is run stage by stage, or node by node.
#[derive(Debug)]
pub(crate) struct Steps {
    signature: Signature,
    body: Body,
    /// Constants of the file, inner graphs included.
    constants: Constants,
    labels: Vec<String>,
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
        let split = split::split(&lowered)?;
        Ok(Self {
            signature,
            body: split.body,
            constants: Constants::of(split.constants, split.slots),
            labels: lowered.labels,
            outputs: None,
            is_bounded: false,
        })
    }

    /// Runs node by node, without plans.
    pub(crate) fn direct(signature: Signature, lowered: Lowered) -> Result<Self, ServiceError> {
        plan::refuse_bf16(&signature)?;
        let prepared = prepare::prepare(&lowered)?;
        let Prepared { body, constants, .. } = prepared;
        let known = Known::of(&body, &signature.inputs, &constants, &prepared.names)
            .map_err(|error| plan::unprepared(error, &lowered.labels))?;
        let outputs = body.outputs.iter().map(|&slot| known.fact(slot)).collect();
        Ok(Self {
            signature,
            body,
            constants: Constants::of(constants, prepared.slots),
            labels: lowered.labels,
            outputs: Some(outputs),
            is_bounded: prepared.is_bounded,
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
        let mut values = Values::new(&self.constants, cancel);
        for (&slot, input) in self.body.inputs.iter().zip(inputs) {
            values.set(slot, Value::Tensor(input.into_arc_tensor()));
        }
        let _run = cancelling::start(cancel);
        let labels = &self.labels;
        let mut run = Run { values, labels };
        run.body(&self.body).map_err(|failure| match failure {
            // Its deadline may be why.
            Failure::Failed(error) if error.code() == ErrorCode::Cancelled => {
                Failure::Failed(plan::ended(cancel))
            }
            failure => failure,
        })?;
        let outputs = self.body.outputs.iter();
        outputs
            .map(|&slot| Ok(run.values.tensor(slot)?.into_tvalue()))
            .collect()
    }
}
