//! The values of one run, and why a run may fail.

use std::{collections::HashMap, fmt, sync::Arc};

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use onnx_kernels::prelude::*;

use crate::{cancelling, faults::BadInput, outcome, room::Room};

/// Where a value is kept during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot(pub(super) usize);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a node takes its inputs from, and where its outputs go.
#[derive(Debug)]
pub(super) struct Wires {
    /// `None` for optional inputs that are not given.
    pub(super) inputs: Vec<Option<Slot>>,
    pub(super) outputs: Vec<Slot>,
}

impl Wires {
    /// Where an input is kept, if it is given.
    pub(super) fn input(&self, index: usize) -> Option<Slot> {
        self.inputs.get(index).copied().flatten()
    }
}

/// A value between steps.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Tensor(Arc<Tensor>),
    Sequence(Arc<Vec<Arc<Tensor>>>),
    /// An optional value that is not there.
    Nothing,
}

impl Value {
    /// About how much memory it takes.
    fn bytes(&self) -> u64 {
        let of = |tensor: &Arc<Tensor>| (tensor.len() * tensor.element_type().size_of()) as u64;
        match self {
            Self::Tensor(tensor) => of(tensor),
            Self::Sequence(tensors) => tensors.iter().map(of).sum(),
            Self::Nothing => 0,
        }
    }
}

/// Constants of the file, inner graphs included, each at its slot.
#[derive(Debug)]
pub(super) struct Constants(Vec<Option<Arc<Tensor>>>);

impl Constants {
    /// In a graph of so many slots.
    pub(super) fn of(constants: HashMap<Slot, Arc<Tensor>>, slots: usize) -> Self {
        let mut all = vec![None; slots];
        for (slot, constant) in constants {
            all[slot.0] = Some(constant);
        }
        Self(all)
    }
}

/// The values of one run so far.
pub(super) struct Values<'s> {
    constants: &'s Constants,
    kept: Vec<Option<Value>>,
    pub(super) room: Room<'static>,
    pub(super) cancel: &'s CancelToken,
}

impl<'s> Values<'s> {
    pub(super) fn new(constants: &'s Constants, cancel: &'s CancelToken) -> Self {
        Self {
            constants,
            kept: vec![None; constants.0.len()],
            room: Room::new(),
            cancel,
        }
    }

    pub(super) fn set(&mut self, slot: Slot, value: Value) {
        self.room.hold(value.bytes());
        self.put(slot, Some(value));
    }

    /// Gives a value up that nothing reads any more.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.put(slot, None);
    }

    fn put(&mut self, slot: Slot, value: Option<Value>) {
        if let Some(before) = std::mem::replace(&mut self.kept[slot.0], value) {
            self.room.release(before.bytes());
        }
    }

    pub(super) fn value(&self, slot: Slot) -> Result<Value, Failure> {
        if let Some(Some(constant)) = self.constants.0.get(slot.0) {
            return Ok(Value::Tensor(constant.clone()));
        }
        let value = self.kept.get(slot.0).and_then(Clone::clone);
        value.ok_or_else(|| Failure::Failed(ServiceError::internal("a value is used before it is there")))
    }

    pub(super) fn tensor(&self, slot: Slot) -> Result<Arc<Tensor>, Failure> {
        match self.value(slot)? {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Sequence(_) => {
                Err(BadInput("a sequence stands where a tensor is needed".to_owned()).into())
            }
            Value::Nothing => Err(BadInput("an optional value is not there".to_owned()).into()),
        }
    }

    /// A value that nothing reads any more.
    pub(super) fn take(&mut self, slot: Slot) -> Result<Arc<Tensor>, Failure> {
        let tensor = self.tensor(slot)?;
        self.remove(slot);
        Ok(tensor)
    }

    pub(super) fn sequence(&self, slot: Slot) -> Result<Arc<Vec<Arc<Tensor>>>, Failure> {
        match self.value(slot)? {
            Value::Sequence(sequence) => Ok(sequence),
            _ => Err(BadInput("a tensor stands where a sequence is needed".to_owned()).into()),
        }
    }
}

/// Why a run ended without an answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The inputs do not fit the model.
    Refused(ServiceError),
    Failed(ServiceError),
}

impl Failure {
    /// As an answer to a request: sizes that a model cannot take are the request's fault.
    pub(crate) fn answer(self) -> ServiceError {
        match self {
            Self::Failed(error) => error,
            Self::Refused(error) => {
                let message = format!("the model cannot be run with these inputs: {}", error.message());
                ServiceError::new(ErrorCode::InvalidArgument, message).caused_by(error)
            }
        }
    }

    pub(super) fn within(self, label: &str) -> Self {
        match self {
            Self::Failed(error) => Self::Failed(error.within(label)),
            Self::Refused(error) => Self::Refused(error.within(label)),
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

impl From<onnx_kernels::prelude::Error> for Failure {
    fn from(error: onnx_kernels::prelude::Error) -> Self {
        if cancelling::is_cancelled(&error) {
            return Self::Failed(ServiceError::new(ErrorCode::Cancelled, "cancelled"));
        }
        match outcome::refusal(&error) {
            Some(reason) => Self::Refused(ServiceError::invalid(reason)),
            None => Self::Failed(outcome::failed(error)),
        }
    }
}
