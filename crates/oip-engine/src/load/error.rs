//! The reasons why models are unavailable, as typed errors with sources. A reason is formatted once, when it
//! is recorded.

use std::{io, sync::Arc, time::Duration};

use model_config::{ConfigError, MismatchError, PipelineError, WrittenConfig};
use model_repository::{FileError, ModelError};
use oip_types::ServiceError;
use tensor_core::{QuotedName, SpecError};
use thiserror::Error;

use crate::{batching::scheduler::PolicyError, pipeline::PlanError};

/// The reason why a model, or one of its versions, cannot be loaded.
#[derive(Debug, Error)]
pub(crate) enum LoadError {
    /// The model's directory, configuration or versions are unusable.
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Name(#[source] ServiceError),
    #[error("failed to poll from model repository: it is not there")]
    Gone,
    #[error("it could not be fetched: {reason}")]
    NotFetched { reason: String },
    #[error("its files changed while they were read")]
    Changed,

    #[error("its config: {0}")]
    SentConfiguration(#[source] Box<ConfigError>),
    #[error(
        "its config: {} is allowed only for configurations in the repository",
        WrittenConfig::MAPPED
    )]
    SentMapping,
    #[error("its config: parameters.{parameter} is allowed only for configurations in the repository")]
    SentProgram { parameter: &'static str },
    #[error(
        "its configuration has {} = true, but the server maps no files (--allow-mapped-models allows it)",
        WrittenConfig::MAPPED
    )]
    MappingNotAllowed,
    #[error("its configuration is not a valid pipeline: {0}")]
    NoPipeline(#[source] PipelineError),
    #[error("its configuration does not match the model: {0}")]
    Mismatch(#[source] Box<MismatchError>),
    #[error(transparent)]
    Policy(PolicyError),

    #[error("its directory has no files: it is being copied, or was left empty")]
    NoFiles,
    #[error("cannot start a thread to load it: {}", .0.kind())]
    NoThread(#[source] io::Error),
    #[error("loading it took longer than {} s", limit.as_secs())]
    Timeout { limit: Duration },
    #[error("the thread that loads it panicked")]
    Died,
    /// The panic message is only logged, because it contains source locations.
    #[error("the backend panicked while {doing}")]
    Panicked { doing: &'static str },
    /// The backend cannot read the file.
    #[error("{file}: {source}")]
    Unreadable { file: String, source: ServiceError },
    #[error("{0}")]
    Backend(#[source] ServiceError),
    #[error("its warm-up request {} failed: {source}", QuotedName(name))]
    WarmUp { name: String, source: Box<WarmUpError> },
    #[error("{0}")]
    Plan(#[source] Arc<PlanError>),
}

/// The reason why a warm-up request failed.
#[derive(Debug, Error)]
pub(crate) enum WarmUpError {
    #[error("input {}: {source}", QuotedName(name))]
    Input { name: String, source: Box<InputError> },
    /// The model refused the request, or its response contradicts the metadata.
    #[error("{0}")]
    Model(#[source] ServiceError),
}

/// The reason why an input of a warm-up request cannot be generated.
#[derive(Debug, Error)]
pub(crate) enum InputError {
    #[error("dims are {dims:?}, but none may be free")]
    FreeDims { dims: Vec<i64> },
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("it would have {length} bytes, more than {limit}")]
    TooLarge { length: u64, limit: u64 },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Value(#[source] ServiceError),
}
