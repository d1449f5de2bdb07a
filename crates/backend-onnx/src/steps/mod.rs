//! Models that no single plan serves: loops, sequences, branches of different ranks, sizes that depend on values.
//!
//! The graph is cut into stages. Within a stage all sizes follow from the shapes of its inputs and from the values of a few
//! small ones, so tract makes one plan for it when these are known; plans are kept for the next request. Between stages
//! stand loops, branches and what works on sequences, which are run here.
//!
//! [`split`] cuts, [`stage`] makes and runs plans, [`control`] and [`sequence`] are what stands between them.

mod control;
mod sequence;
mod split;
mod stage;

use std::{collections::HashMap, fmt, sync::Arc};

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use tract_onnx::{
    pb,
    prelude::{TValue, TVec},
    tract_hir::internal::{IntoArcTensor, IntoTValue, Tensor},
};

use crate::{faults::BadInput, lower::Lowered, ops, signature::Signature};
use split::Slot;

/// A model that is run stage by stage.
#[derive(Debug)]
pub(crate) struct Steps {
    signature: Signature,
    body: split::Body,
    /// Constants of the file, inner graphs included.
    constants: HashMap<Slot, Arc<Tensor>>,
    labels: Vec<String>,
    slots: usize,
}

/// Whether a graph has operators that only this module runs.
pub(crate) fn are_needed(graph: &pb::GraphProto) -> bool {
    graph.node.iter().any(|node| {
        ops::is_stepwise(&node.op_type)
            || node
                .attribute
                .iter()
                .any(|attribute| attribute.g.as_ref().is_some_and(are_needed))
    })
}

impl Steps {
    pub(crate) fn new(signature: Signature, lowered: Lowered) -> Result<Self, ServiceError> {
        let labels = lowered.labels;
        let split = split::split(&lowered.model, &labels)?;
        Ok(Self {
            signature,
            body: split.body,
            constants: split.constants,
            labels,
            slots: split.slots,
        })
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs the model.
    pub(crate) fn run(&self, inputs: TVec<TValue>, cancel: &CancelToken) -> Result<TVec<TValue>, Failure> {
        let mut run = Run {
            steps: self,
            values: vec![None; self.slots],
            cancel,
        };
        for (&slot, input) in self.body.inputs.iter().zip(inputs) {
            run.set(slot, Value::Tensor(input.into_arc_tensor()));
        }
        run.body(&self.body)?;
        let outputs = self.body.outputs.iter();
        outputs.map(|&slot| Ok(run.tensor(slot)?.into_tvalue())).collect()
    }
}

/// Why a run ended without an answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No plan can be made for what a stage was given.
    Unplanned(ServiceError),
    Failed(ServiceError),
}

impl Failure {
    /// As an answer to a request: sizes that a model cannot take are the request's fault.
    pub(crate) fn answer(self) -> ServiceError {
        match self {
            Self::Failed(error) => error,
            Self::Unplanned(error) => {
                let message = format!("the model cannot be run with these inputs: {}", error.message());
                ServiceError::new(ErrorCode::InvalidArgument, message).caused_by(error)
            }
        }
    }

    /// As the outcome of a trial, where it must not be taken for an answer.
    pub(crate) fn trial(self) -> ServiceError {
        match self {
            Self::Failed(error) => error,
            Self::Unplanned(error) => ServiceError::internal(error.message().to_owned()).caused_by(error),
        }
    }

    fn within(self, label: &str) -> Self {
        match self {
            Self::Failed(error) => Self::Failed(error.within(label)),
            Self::Unplanned(error) => Self::Unplanned(error.within(label)),
        }
    }
}

impl From<BadInput> for Failure {
    fn from(BadInput(reason): BadInput) -> Self {
        Self::Failed(ServiceError::invalid(format!(
            "the model cannot take these values: {reason}"
        )))
    }
}

impl From<tract_onnx::prelude::TractError> for Failure {
    fn from(error: tract_onnx::prelude::TractError) -> Self {
        Self::Failed(crate::plan::failed(error))
    }
}

/// What flows between steps.
#[derive(Clone, Debug)]
enum Value {
    Tensor(Arc<Tensor>),
    Sequence(Arc<Vec<Arc<Tensor>>>),
    /// An optional value that is not there.
    Nothing,
}

/// One run of a model: the values so far.
struct Run<'s> {
    steps: &'s Steps,
    values: Vec<Option<Value>>,
    cancel: &'s CancelToken,
}

impl Run<'_> {
    fn body(&mut self, body: &split::Body) -> Result<(), Failure> {
        for step in &body.steps {
            if self.cancel.is_cancelled() {
                return Err(Failure::Failed(crate::plan::ended(self.cancel)));
            }
            match step {
                split::Step::Stage(stage) => self.stage(stage)?,
                split::Step::Control(node) => self
                    .control(node)
                    .map_err(|failure| failure.within(&node.label))?,
            }
        }
        Ok(())
    }

    fn set(&mut self, slot: Slot, value: Value) {
        self.values[slot.0] = Some(value);
    }

    fn value(&self, slot: Slot) -> Result<Value, Failure> {
        if let Some(constant) = self.steps.constants.get(&slot) {
            return Ok(Value::Tensor(constant.clone()));
        }
        let value = self.values.get(slot.0).and_then(Clone::clone);
        value.ok_or_else(|| Failure::Failed(ServiceError::internal("a value is used before it is there")))
    }

    fn tensor(&self, slot: Slot) -> Result<Arc<Tensor>, Failure> {
        match self.value(slot)? {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Sequence(_) => {
                Err(BadInput("a sequence stands where a tensor is needed".to_owned()).into())
            }
            Value::Nothing => Err(BadInput("an optional value is not there".to_owned()).into()),
        }
    }

    fn sequence(&self, slot: Slot) -> Result<Arc<Vec<Arc<Tensor>>>, Failure> {
        match self.value(slot)? {
            Value::Sequence(sequence) => Ok(sequence),
            _ => Err(BadInput("a tensor stands where a sequence is needed".to_owned()).into()),
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
