//! Why a configuration is refused: typed, with the texts that people read.

use std::{error::Error, fmt};

use oip_types::{DataType, ServiceError};
use tensor_core::Quoted;
use thiserror::Error;

/// Where something stands in a configuration's text, both counted from 1.
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
    /// The character in the line.
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

/// Why a configuration is not sound in itself. Its text says where and what was expected, without the file's name.
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
    /// Its text is too large.
    #[error("it is larger than {limit} bytes")]
    TooLarge {
        /// Bytes that are read at most.
        limit: usize,
    },
    /// Its text does not follow its syntax.
    #[error("{}{problem}", Prefix(place))]
    Syntax {
        /// The place; `None` if the problem names it.
        place: Option<Place>,
        /// What is wrong there.
        problem: String,
        /// The error of the reader of JSON or TOML.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A field has a value of another kind, or out of its range.
    #[error("{}{}expected {expected}, found {found}", Prefix(place), Prefix(&Some(field).filter(|field| !field.is_empty())))]
    Unexpected {
        /// The place; `None` in JSON and TOML.
        place: Option<Place>,
        /// The field's path, such as `input[0].dims[1]`; empty for the whole.
        field: String,
        /// The values that it can have.
        expected: String,
        /// The value that it has.
        found: String,
    },
    /// A field that can be given once is given again.
    #[error("{}{field} is given more than once", Prefix(place))]
    Repeated {
        /// The place; `None` in JSON and TOML.
        place: Option<Place>,
        /// The field's path.
        field: String,
    },
    /// Ignoring the field would change answers, and acting on it is not supported.
    #[error("{}{field} is not supported ({feature})", Prefix(place))]
    Unsupported {
        /// The place; `None` in JSON and TOML.
        place: Option<Place>,
        /// The field's path.
        field: String,
        /// What the field asks for.
        feature: &'static str,
    },
    /// A value that the type of its field does not take.
    #[error(transparent)]
    Value(Box<dyn Error + Send + Sync>),
    /// Two fields exclude each other.
    #[error("{first} and {second} cannot stand together")]
    Conflict {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// One of several fields is required.
    #[error("{field}: expected one of {}", one_of.join(", "))]
    Missing {
        /// The message that lacks it.
        field: String,
        /// The fields.
        one_of: Vec<&'static str>,
    },
    /// An input of a warm-up request has no datatype.
    #[error("{field} has no data_type")]
    NoDatatype {
        /// The input's path.
        field: String,
    },
    /// An input or output has no name.
    #[error("{role}[{index}] has no name")]
    Unnamed {
        /// What it is.
        role: Role,
        /// Which of them, from 0.
        index: usize,
    },
    /// Two inputs or outputs have the same name.
    #[error("{role} {} is there twice", Quoted(name))]
    SameName {
        /// What they are.
        role: Role,
        /// Their name.
        name: String,
    },
    /// The name of a file would lead out of the model's folder.
    #[error("{}{source}", Prefix(&tensor.as_ref().map(|(role, name)| format!("{role} {}", Quoted(name)))))]
    FileName {
        /// The input or output that names it, if one does.
        tensor: Option<(Role, String)>,
        /// The rule that is broken.
        source: ServiceError,
    },
    /// `parameters.mapped` is not a truth value.
    #[error("{field} is {}, expected true or false", Quoted(found))]
    NotBool {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
    },
    /// A pipeline that names something else as what runs it.
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

/// Why a configuration does not fit its model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MismatchError {
    /// Dynamic batching without batches.
    #[error("dynamic_batching needs a max_batch_size above 0")]
    NoBatches,
    /// All groups together have more instances than a model can use.
    #[error("instance_group stands for {} instances, the limit is {}", .0, crate::fields::MAX_INSTANCES)]
    TooManyInstances(u64),
    /// Answers of a model that gives several to a request are not kept.
    #[error("response_cache is for models that give one answer to a request, and this one is decoupled")]
    CachedStream,
    /// The model takes no batches, since a first dimension is fixed.
    #[error(
        "max_batch_size is {max_batch_size}, but the model takes no batches: the first dimension of {tensor} is not free \
         (with max_batch_size: 0 it can be served)"
    )]
    FixedRows {
        /// What is configured.
        max_batch_size: u32,
        /// An input or output whose first dimension is not free, with its shape.
        tensor: String,
    },
    /// The model has no such input or output.
    #[error("{role} {} is not the model's, which has {known}", Quoted(name))]
    UnknownTensor {
        /// What it should be.
        role: Role,
        /// The configured name.
        name: String,
        /// Some that the model has.
        known: String,
    },
    /// An input or output of another datatype than the model's.
    #[error("{role} {}: data_type is {}, but the model has {}", Quoted(name), written.config_name(), model.config_name())]
    Datatype {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
        /// What is configured.
        written: DataType,
        /// What the model has.
        model: DataType,
    },
    /// An input that is configured as optional, and that the model needs.
    #[error(
        "{role} {}: optional is true, but the model cannot do without it",
        Quoted(name)
    )]
    Required {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
    },
    /// Dimensions that are not among those that the model takes or gives.
    #[error("{role} {}: dims are {dims:?}, but the model has {model}{}; write dims: {advice:?}", Quoted(name), if *is_batched {
        ", where the first counts the rows of a batch and is not written"
    } else {
        ""
    })]
    Dims {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
        /// What is configured.
        dims: Vec<i64>,
        /// The model's shape.
        model: String,
        /// Whether the first dimension counts rows, which configurations leave out.
        is_batched: bool,
        /// What the configuration could say.
        advice: Vec<i64>,
    },
    /// A reshape that does more than add or leave out axes of one.
    #[error(
        "{role} {}: reshape can add and leave out axes of one between dims, which clients see, and reshape.shape, which \
         the model has; both have to be written",
        Quoted(name)
    )]
    Reshape {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
    },
}

/// Why a configuration is not one of a pipeline.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// There are no steps.
    #[error("a pipeline needs steps in ensemble_scheduling")]
    NoSteps,
    /// There is no output.
    #[error("a pipeline needs an output")]
    NoOutput,
    /// It would give several answers to a request.
    #[error("a pipeline gives one answer to a request, so its model_transaction_policy cannot be decoupled")]
    Decoupled,
    /// All there is to know of an input or output stands in the configuration, so this has to.
    #[error("{role} {} of a pipeline needs {field}", Quoted(name))]
    Missing {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
        /// The field that is missing.
        field: &'static str,
    },
    /// A reshape, which its models have.
    #[error(
        "{role} {} of a pipeline cannot have a reshape; the model of the step can",
        Quoted(name)
    )]
    Reshape {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
    },
    /// An input that may be left out.
    #[error("{role} {} of a pipeline cannot be optional", Quoted(name))]
    Optional {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
    },
}

/// A part of a text that is followed by a colon, if it is there.
struct Prefix<'p, T>(&'p Option<T>);

impl<T: fmt::Display> fmt::Display for Prefix<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(part) => write!(f, "{part}: "),
            None => Ok(()),
        }
    }
}
