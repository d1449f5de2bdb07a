//! Typed configuration errors and their messages.

use std::{error::Error, fmt};

use oip_types::{DataType, ServiceError};
use tensor_core::QuotedName;
use thiserror::Error;

/// A position in a configuration file, counted from 1.
///
/// ```
/// use model_config::Position;
///
/// assert_eq!(Position { line: 2, column: 5 }.to_string(), "line 2, column 5");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line number.
    pub line: usize,
    /// The column number, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Whether a tensor is an input or an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The tensor is an input.
    Input,
    /// The tensor is an output.
    Output,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
        })
    }
}

/// The error for a configuration that is invalid regardless of its model. The message gives the position and
/// the expected value, but not the file name.
///
/// ```
/// use model_config::{ConfigError, Syntax, WrittenConfig};
///
/// let error = WrittenConfig::read("max_batch_size: -1", Syntax::Pbtxt).unwrap_err();
/// assert!(matches!(error, ConfigError::Unexpected { .. }));
/// assert_eq!(
///     error.to_string(),
///     "line 1, column 17: max_batch_size: expected an integer from 0 to 2147483647, found '-1'"
/// );
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is too large.
    #[error("it is larger than {limit} bytes")]
    TooLarge {
        /// The maximum size of a configuration, in bytes.
        limit: usize,
    },
    /// The text does not follow the syntax of its format.
    #[error("{}{problem}", Prefix(place))]
    Syntax {
        /// The position of the error; `None` if `problem` includes it.
        place: Option<Position>,
        /// The reason why the text is invalid.
        problem: String,
        /// The error of the JSON or TOML parser; `None` for protobuf text.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A field's value has the wrong type or is out of range.
    #[error("{}{}expected {expected}, found {found}", Prefix(place), Prefix(&Some(field).filter(|field| !field.is_empty())))]
    Unexpected {
        /// The position of the value; `None` in JSON and TOML.
        place: Option<Position>,
        /// The field's path, such as `input[0].dims[1]`; empty for the root.
        field: String,
        /// Description of the allowed values.
        expected: String,
        /// The value in the configuration.
        found: String,
    },
    /// A non-repeated field occurs twice.
    #[error("{}{field} is given more than once", Prefix(place))]
    Repeated {
        /// The position of the second occurrence; `None` in JSON and TOML.
        place: Option<Position>,
        /// The path of the repeated field.
        field: String,
    },
    /// The field is not supported, and ignoring it would change responses.
    #[error("{}{field} is not supported ({feature})", Prefix(place))]
    Unsupported {
        /// The position of the field; `None` in JSON and TOML.
        place: Option<Position>,
        /// The path of the field.
        field: String,
        /// The feature that the field requests.
        feature: &'static str,
    },
    /// The type of the field rejected its value.
    #[error(transparent)]
    Value(Box<dyn Error + Send + Sync>),
    /// Two fields exclude each other, and both are present.
    #[error("{first} and {second} cannot be combined")]
    Conflict {
        /// The path of the first field.
        first: String,
        /// The path of the second field.
        second: String,
    },
    /// One of several fields is required, and none is present.
    #[error("{field}: expected one of {}", one_of.join(", "))]
    Missing {
        /// The path of the message that lacks the field.
        field: String,
        /// The names of the fields, one of which is required.
        one_of: Vec<&'static str>,
    },
    /// An input of a warm-up request lacks a datatype.
    #[error("{field} has no data_type")]
    NoDatatype {
        /// The path of the input.
        field: String,
    },
    /// An input or output lacks a name.
    #[error("{role}[{index}] has no name")]
    Unnamed {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// Index of the tensor among the inputs or outputs.
        index: usize,
    },
    /// Two inputs or outputs have the same name.
    #[error("{role} {} is given twice", QuotedName(name))]
    SameName {
        /// Whether the tensors are inputs or outputs.
        role: Role,
        /// The name that the tensors share.
        name: String,
    },
    /// A file name would escape the model's directory.
    #[error("{}{source}", Prefix(&tensor.as_ref().map(|(role, name)| format!("{role} {}", QuotedName(name)))))]
    FileName {
        /// The input or output that names the file, if one does.
        tensor: Option<(Role, String)>,
        /// The rule that the file name violates.
        source: ServiceError,
    },
    /// `parameters.mapped` is not a boolean.
    #[error("{field} is {}, expected true or false", QuotedName(found))]
    NotBool {
        /// The path of the parameter.
        field: &'static str,
        /// The value of the parameter.
        found: String,
    },
    /// A pipeline names another platform or backend.
    #[error(
        "{field} is {}, but with ensemble_scheduling it must be 'ensemble' or absent",
        QuotedName(found)
    )]
    NotEnsemble {
        /// The name of the field, `platform` or `backend`.
        field: &'static str,
        /// The value of the field.
        found: String,
    },
}

/// The error for a configuration that does not fit its model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MismatchError {
    /// The configuration has dynamic batching, but the model does not batch.
    #[error("dynamic_batching needs a max_batch_size above 0")]
    NoBatches,
    /// The groups have more instances in total than the maximum.
    #[error("instance_group has {} instances in total, the limit is {}", .0, crate::fields::MAX_INSTANCES)]
    TooManyInstances(u64),
    /// The configuration has a response cache, but the model sends several responses per request.
    #[error("response_cache needs a model with one response per request, and this one is decoupled")]
    CachedStream,
    /// The configuration has a batch size, but the model cannot batch, because a first dimension is fixed.
    #[error(
        "max_batch_size is {max_batch_size}, but the model takes no batches: the first dimension of {tensor} is not free \
         (with max_batch_size: 0 it can be served)"
    )]
    FixedRows {
        /// The batch size in the configuration.
        max_batch_size: u32,
        /// An input or output with a fixed first dimension, with its shape.
        tensor: String,
    },
    /// The model does not have this input or output.
    #[error("the model has no {role} {}; it has {known}", QuotedName(name))]
    UnknownTensor {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name in the configuration.
        name: String,
        /// The first five of the model's inputs or outputs, for the message.
        known: String,
    },
    /// The datatype differs from the model's.
    #[error("{role} {}: data_type is {}, but the model has {}", QuotedName(name), written.config_name(), model.config_name())]
    Datatype {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name of the input or output.
        name: String,
        /// The datatype in the configuration.
        written: DataType,
        /// The datatype of the model.
        model: DataType,
    },
    /// The configuration makes an input optional that the model requires.
    #[error("{role} {}: optional is true, but the model requires it", QuotedName(name))]
    Required {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name of the tensor.
        name: String,
    },
    /// The configured dimensions do not match the model's.
    #[error("{role} {}: dims are {dims:?}, but the model has {model}{}; write dims: {advice:?}", QuotedName(name), if *is_batched {
        ", whose first dimension is the batch size, which dims leave out"
    } else {
        ""
    })]
    Dims {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name of the tensor.
        name: String,
        /// The dimensions in the configuration.
        dims: Vec<i64>,
        /// The shape of the model's tensor.
        model: String,
        /// Whether the first dimension is the batch dimension, which configurations omit.
        is_batched: bool,
        /// Dimensions that would be valid.
        advice: Vec<i64>,
    },
    /// A reshape does more than add or remove axes of length one.
    #[error(
        "{role} {}: reshape can only add or remove axes of size 1 between dims, which clients see, and \
         reshape.shape, which the model has; give both",
        QuotedName(name)
    )]
    Reshape {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name of the tensor.
        name: String,
    },
}

/// The error for a configuration that is not a valid pipeline.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The pipeline has no steps.
    #[error("a pipeline needs steps in ensemble_scheduling")]
    NoSteps,
    /// The pipeline has no output.
    #[error("a pipeline needs an output")]
    NoOutput,
    /// The pipeline would send several responses per request.
    #[error(
        "a pipeline returns one response per request, so its model_transaction_policy cannot be decoupled"
    )]
    Decoupled,
    /// A required field of an input or output is missing, and no model provides it.
    #[error("{role} {} of a pipeline needs {field}", QuotedName(name))]
    Missing {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name of the tensor.
        name: String,
        /// The name of the missing field.
        field: &'static str,
    },
    /// The pipeline has a reshape, which only the models of its steps may have.
    #[error(
        "{role} {} of a pipeline cannot have a reshape; the model of the step can",
        QuotedName(name)
    )]
    Reshape {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name of the tensor.
        name: String,
    },
    /// The pipeline has an optional input.
    #[error("{role} {} of a pipeline cannot be optional", QuotedName(name))]
    Optional {
        /// Whether the tensor is an input or an output.
        role: Role,
        /// The name of the tensor.
        name: String,
    },
}

/// The beginning of a message, followed by a colon; empty if there is none.
struct Prefix<'p, T>(&'p Option<T>);

impl<T: fmt::Display> fmt::Display for Prefix<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(part) => write!(f, "{part}: "),
            None => Ok(()),
        }
    }
}
