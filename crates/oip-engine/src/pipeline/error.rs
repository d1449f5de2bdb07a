//! The reasons why a pipeline cannot run.

use std::{fmt, sync::Arc};

use oip_types::ServiceError;
use tensor_core::QuotedName;
use thiserror::Error;

/// The reason why the steps of a pipeline do not fit together, or why a step cannot run.
#[derive(Debug, Error)]
pub(crate) enum PlanError {
    #[error("it is being loaded")]
    Loading,
    #[error("{0} is the pipeline itself")]
    Itself(StepLocation),
    #[error("{step}: {source}")]
    Model { step: StepLocation, source: StepError },
    #[error("{step}: the model has no input {}", QuotedName(input))]
    NoSuchInput { step: StepLocation, input: String },
    #[error("{step}: the model has no output {}", QuotedName(output))]
    NoSuchOutput { step: StepLocation, output: String },
    #[error("{step}: no tensor goes to the model's input {input}")]
    MissingInput { step: StepLocation, input: String },
    #[error("the input {} goes to no step", QuotedName(input))]
    UnusedInput { input: String },
    #[error("tensor {} has two sources: {first} and {second}", QuotedName(tensor))]
    TwoSources {
        tensor: String,
        first: TensorSource,
        second: TensorSource,
    },
    #[error("tensor {} goes to {reader}, but has no source", QuotedName(tensor))]
    NoSource { tensor: String, reader: String },
    #[error(
        "tensor {} comes from {source_tensor}, but goes to {reader}",
        QuotedName(tensor)
    )]
    Mismatch {
        tensor: String,
        source_tensor: String,
        reader: String,
    },
    #[error("the steps form a cycle{}{}", if walk.is_empty() { "" } else { ": " }, walk.join(" -> "))]
    Cycle { walk: Vec<String> },
}

/// The reason why a model cannot run as a step.
#[derive(Debug, Error)]
pub(crate) enum StepError {
    #[error("{0}")]
    NotServed(#[from] ServiceError),
    #[error("it is a pipeline that runs this one in turn")]
    RunsThePipeline,
    #[error("it is decoupled: it returns any number of responses to a request, and a step needs one")]
    IsDecoupled,
    #[error("{model} is not ready: {reason}")]
    NotReady {
        model: String,
        #[source]
        reason: Arc<PlanError>,
    },
}

/// A step of a pipeline: its index and model.
#[derive(Clone, Debug)]
pub(crate) struct StepLocation {
    pub(super) index: usize,
    pub(super) model: String,
}

impl fmt::Display for StepLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} (model {})", self.index, QuotedName(&self.model))
    }
}

/// Source of a tensor in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorSource {
    Client,
    Step(usize),
}

impl fmt::Display for TensorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("the pipeline's input"),
            Self::Step(index) => write!(f, "step {index} output"),
        }
    }
}
