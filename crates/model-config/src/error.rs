//! Typed configuration errors and their messages.

use std::{error::Error, fmt};

use oip_types::{DataType, ServiceError};
use tensor_core::Quoted;
use thiserror::Error;

/// A position in a configuration file, counted from 1.
///
/// ```
/// use model_config::Place;
///
/// assert_eq!(Place { line: 2, column: 5 }.to_string(), "line 2, column 5");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// An input or an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An input.
    Input,
    /// An output.
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
/// the expectation, but not the file name.
///
/// ```
/// use model_config::{ConfigError, Syntax, WrittenConfig};
///
/// let error = WrittenConfig::read("max_batch_size: -1", Syntax::Pbtxt).unwrap_err();
/// assert!(matches!(error, ConfigError::Unexpected { .. }));
/// assert_eq!(
///     error.to_string(),
///     "line 1, column 17: max_batch_size: expected a whole number from 0 to 2147483647, found '-1'"
/// );
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is too large.
    #[error("it is larger than {limit} bytes")]
    TooLarge {
        /// The maximum size in bytes.
        limit: usize,
    },
    /// Syntax error.
    #[error("{}{problem}", Prefix(place))]
    Syntax {
        /// The position; `None` if `problem` includes it.
        place: Option<Place>,
        /// The problem.
        problem: String,
        /// The JSON or TOML parser's error.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A field's value has the wrong type or is out of range.
    #[error("{}{}expected {expected}, found {found}", Prefix(place), Prefix(&Some(field).filter(|field| !field.is_empty())))]
    Unexpected {
        /// The position; `None` in JSON and TOML.
        place: Option<Place>,
        /// The field's path, such as `input[0].dims[1]`; empty for the root.
        field: String,
        /// The expected values.
        expected: String,
        /// The value found.
        found: String,
    },
    /// A non-repeated field occurs twice.
    #[error("{}{field} is given more than once", Prefix(place))]
    Repeated {
        /// The position; `None` in JSON and TOML.
        place: Option<Place>,
        /// The field's path.
        field: String,
    },
    /// The field is not supported, and ignoring it would change responses.
    #[error("{}{field} is not supported ({feature})", Prefix(place))]
    Unsupported {
        /// The position; `None` in JSON and TOML.
        place: Option<Place>,
        /// The field's path.
        field: String,
        /// The feature that the field requests.
        feature: &'static str,
    },
    /// The type of the field rejected its value.
    #[error(transparent)]
    Value(Box<dyn Error + Send + Sync>),
    /// Two fields are mutually exclusive.
    #[error("{first} and {second} cannot stand together")]
    Conflict {
        /// The first field.
        first: String,
        /// The second field.
        second: String,
    },
    /// One of several fields is required, and none is present.
    #[error("{field}: expected one of {}", one_of.join(", "))]
    Missing {
        /// The path of the message that lacks them.
        field: String,
        /// The fields.
        one_of: Vec<&'static str>,
    },
    /// An input of a warm-up request lacks a datatype.
    #[error("{field} has no data_type")]
    NoDatatype {
        /// The input's path.
        field: String,
    },
    /// An input or output lacks a name.
    #[error("{role}[{index}] has no name")]
    Unnamed {
        /// Input or output.
        role: Role,
        /// Its index.
        index: usize,
    },
    /// Two inputs or outputs have the same name.
    #[error("{role} {} is there twice", Quoted(name))]
    SameName {
        /// Input or output.
        role: Role,
        /// Their name.
        name: String,
    },
    /// A file name would escape the model's directory.
    #[error("{}{source}", Prefix(&tensor.as_ref().map(|(role, name)| format!("{role} {}", Quoted(name)))))]
    FileName {
        /// The input or output that names the file, if one does.
        tensor: Option<(Role, String)>,
        /// The violated rule.
        source: ServiceError,
    },
    /// `parameters.mapped` is not a boolean.
    #[error("{field} is {}, expected true or false", Quoted(found))]
    NotBool {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
    },
    /// A pipeline names another platform or backend.
    #[error(
        "{field} is {}, but with ensemble_scheduling it is 'ensemble', or absent",
        Quoted(found)
    )]
    NotEnsemble {
        /// The field.
        field: &'static str,
        /// Its value.
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
    #[error("instance_group stands for {} instances, the limit is {}", .0, crate::fields::MAX_INSTANCES)]
    TooManyInstances(u64),
    /// The configuration has a response cache, but the model sends several responses per request.
    #[error("response_cache is for models that give one answer to a request, and this one is decoupled")]
    CachedStream,
    /// The configuration has a batch size, but the model cannot batch, because a first dimension is fixed.
    #[error(
        "max_batch_size is {max_batch_size}, but the model takes no batches: the first dimension of {tensor} is not free \
         (with max_batch_size: 0 it can be served)"
    )]
    FixedRows {
        /// The configured value.
        max_batch_size: u32,
        /// An input or output with a fixed first dimension, and its shape.
        tensor: String,
    },
    /// The model does not have this input or output.
    #[error("{role} {} is not the model's, which has {known}", Quoted(name))]
    UnknownTensor {
        /// Input or output.
        role: Role,
        /// The configured name.
        name: String,
        /// Some existing names.
        known: String,
    },
    /// The datatype differs from the model's.
    #[error("{role} {}: data_type is {}, but the model has {}", Quoted(name), written.config_name(), model.config_name())]
    Datatype {
        /// Input or output.
        role: Role,
        /// The name of the input or output.
        name: String,
        /// The configured datatype.
        written: DataType,
        /// The model's datatype.
        model: DataType,
    },
    /// The configuration makes an input optional that the model requires.
    #[error(
        "{role} {}: optional is true, but the model cannot do without it",
        Quoted(name)
    )]
    Required {
        /// Input or output.
        role: Role,
        /// Its name.
        name: String,
    },
    /// The configured dimensions do not match the model's.
    #[error("{role} {}: dims are {dims:?}, but the model has {model}{}; write dims: {advice:?}", Quoted(name), if *is_batched {
        ", where the first counts the rows of a batch and is not written"
    } else {
        ""
    })]
    Dims {
        /// Input or output.
        role: Role,
        /// Its name.
        name: String,
        /// The configured dimensions.
        dims: Vec<i64>,
        /// The model's shape.
        model: String,
        /// Whether the first dimension is the batch dimension, which configurations omit.
        is_batched: bool,
        /// Dimensions that would be valid.
        advice: Vec<i64>,
    },
    /// A reshape does more than add or remove axes of length one.
    #[error(
        "{role} {}: reshape can add and leave out axes of one between dims, which clients see, and reshape.shape, which \
         the model has; both have to be written",
        Quoted(name)
    )]
    Reshape {
        /// Input or output.
        role: Role,
        /// Its name.
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
    #[error("a pipeline gives one answer to a request, so its model_transaction_policy cannot be decoupled")]
    Decoupled,
    /// A required field of an input or output is missing, and no model provides it.
    #[error("{role} {} of a pipeline needs {field}", Quoted(name))]
    Missing {
        /// Input or output.
        role: Role,
        /// Its name.
        name: String,
        /// The field that is missing.
        field: &'static str,
    },
    /// The pipeline has a reshape, which only the models of its steps may have.
    #[error(
        "{role} {} of a pipeline cannot have a reshape; the model of the step can",
        Quoted(name)
    )]
    Reshape {
        /// Input or output.
        role: Role,
        /// Its name.
        name: String,
    },
    /// The pipeline has an optional input.
    #[error("{role} {} of a pipeline cannot be optional", Quoted(name))]
    Optional {
        /// Input or output.
        role: Role,
        /// Its name.
        name: String,
    },
}

/// An optional message prefix, followed by a colon.
struct Prefix<'p, T>(&'p Option<T>);

impl<T: fmt::Display> fmt::Display for Prefix<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(part) => write!(f, "{part}: "),
            None => Ok(()),
        }
    }
}
