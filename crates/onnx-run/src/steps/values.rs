//! The values of a run, and the reasons why a run fails.

use std::{collections::HashMap, fmt, sync::Arc};

use onnx_tensor::prelude::*;

use crate::{RunError, RunErrorKind, outcome};
use onnx_tensor::{
    cancelling::{self, Cancellation},
    faults::BadInput,
    room::Room,
    size,
};

/// The index of a value during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) usize);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The slots of a node's inputs and outputs.
#[derive(Debug)]
pub(crate) struct Wires {
    /// Slots of the inputs; `None` for missing optional inputs.
    pub(crate) inputs: Vec<Option<Slot>>,
    pub(crate) outputs: Vec<Slot>,
}

impl Wires {
    /// Returns the slot of an input, if present.
    pub(crate) fn input(&self, index: usize) -> Option<Slot> {
        self.inputs.get(index).copied().flatten()
    }
}

/// A value that one step passes to others.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tensor(Arc<Tensor>),
    Sequence(Arc<Vec<Arc<Tensor>>>),
    /// An optional value that is empty.
    Nothing,
}

impl Value {
    /// Returns the approximate size of the value in memory, in bytes.
    fn bytes(&self) -> u64 {
        match self {
            Self::Tensor(tensor) => size::of_value(tensor),
            Self::Sequence(tensors) => tensors.iter().map(|tensor| size::of_listed(tensor)).sum(),
            Self::Nothing => 0,
        }
    }
}

/// Constants of the file and its subgraphs, by slot.
#[derive(Debug)]
pub(crate) struct Constants(Vec<Option<Arc<Tensor>>>);

impl Constants {
    /// Creates the table for a graph with `slots` slots.
    pub(crate) fn of(constants: HashMap<Slot, Arc<Tensor>>, slots: usize) -> Self {
        let mut all = vec![None; slots];
        for (slot, constant) in constants {
            all[slot.0] = Some(constant);
        }
        Self(all)
    }
}

/// The current values of a run.
pub(crate) struct Values<'s> {
    constants: &'s Constants,
    /// The values, each with the number of bytes that `room` counts for it.
    kept: Vec<Option<(Value, u64)>>,
    pub(crate) room: Room<'static>,
    pub(crate) cancel: &'s dyn Cancellation,
}

impl<'s> Values<'s> {
    pub(crate) fn new(constants: &'s Constants, cancel: &'s dyn Cancellation, room: Room<'static>) -> Self {
        Self {
            constants,
            kept: vec![None; constants.0.len()],
            room,
            cancel,
        }
    }

    pub(crate) fn set(&mut self, slot: Slot, value: Value) {
        let bytes = value.bytes();
        self.room.hold(bytes);
        self.put(slot, Some((value, bytes)));
    }

    /// Drops a value that no later step reads.
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.put(slot, None);
    }

    fn put(&mut self, slot: Slot, value: Option<(Value, u64)>) {
        if let Some((before, bytes)) = std::mem::replace(&mut self.kept[slot.0], value) {
            self.room.release(bytes);
            if let Value::Tensor(tensor) = before {
                tensor.release();
            }
        }
    }

    pub(crate) fn value(&self, slot: Slot) -> Result<Value, Failure> {
        if let Some(Some(constant)) = self.constants.0.get(slot.0) {
            return Ok(Value::Tensor(constant.clone()));
        }
        let value = self.kept.get(slot.0).and_then(Option::as_ref);
        value.map(|(value, _)| value.clone()).ok_or_else(|| {
            Failure::Failed(RunError::new(
                RunErrorKind::Failed,
                "a value is read before it is computed",
            ))
        })
    }

    pub(crate) fn tensor(&self, slot: Slot) -> Result<Arc<Tensor>, Failure> {
        match self.value(slot)? {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Sequence(_) => {
                Err(BadInput("an input is a sequence, expected a tensor".to_owned()).into())
            }
            Value::Nothing => {
                Err(BadInput("an optional input has no value, expected a tensor".to_owned()).into())
            }
        }
    }

    /// Removes and returns a value that no later step reads.
    pub(crate) fn take(&mut self, slot: Slot) -> Result<Arc<Tensor>, Failure> {
        let tensor = self.tensor(slot)?;
        self.remove(slot);
        Ok(tensor)
    }

    pub(crate) fn sequence(&self, slot: Slot) -> Result<Arc<Vec<Arc<Tensor>>>, Failure> {
        match self.value(slot)? {
            Value::Sequence(sequence) => Ok(sequence),
            _ => Err(BadInput("an input is a tensor, expected a sequence".to_owned()).into()),
        }
    }
}

/// The reason why a run failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The model does not accept the inputs.
    Refused(String),
    Failed(RunError),
}

impl Failure {
    /// Converts the failure into an error of the run. A refusal becomes an error that the client caused.
    pub(crate) fn into_error(self) -> RunError {
        match self {
            Self::Failed(error) => error,
            Self::Refused(reason) => RunError::new(
                RunErrorKind::InvalidInput,
                format!("the model cannot be run with these inputs: {reason}"),
            ),
        }
    }

    pub(crate) fn within(self, label: &str) -> Self {
        match self {
            Self::Failed(error) => Self::Failed(error.within(label)),
            Self::Refused(reason) => Self::Refused(format!("{label}: {reason}")),
        }
    }
}

impl From<BadInput> for Failure {
    fn from(BadInput(reason): BadInput) -> Self {
        Self::Failed(RunError::values(&reason))
    }
}

impl From<onnx_tensor::prelude::Error> for Failure {
    fn from(error: onnx_tensor::prelude::Error) -> Self {
        if cancelling::is_cancelled(&error) {
            return Self::Failed(RunError::cancelled());
        }
        match outcome::refusal(&error) {
            Some(reason) => Self::Refused(reason),
            None => Self::Failed(outcome::failed(error)),
        }
    }
}
