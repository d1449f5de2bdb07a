//! Request parameters and their values.

use std::{collections::BTreeMap, fmt};

use tensor_core::QuotedName;

use crate::ServiceError;

/// Parameters of a request, an input, a requested output or a response, by name.
pub type Parameters = BTreeMap<String, ParameterValue>;

/// The value of a parameter.
///
/// ```
/// use oip_types::{ParameterValue, Parameters};
///
/// let parameters = Parameters::from([("timeout".to_owned(), ParameterValue::Int64(500))]);
/// assert_eq!(parameters["timeout"].as_u64(), Some(500));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ParameterValue {
    /// A boolean: JSON's `true` and `false`, gRPC's `bool_param`.
    Bool(bool),
    /// A signed integer: every JSON integer, gRPC's `int64_param`.
    Int64(i64),
    /// An unsigned integer: gRPC's `uint64_param` only.
    Uint64(u64),
    /// A number with a fraction or an exponent.
    Double(f64),
    /// A string: gRPC's `string_param`.
    String(String),
}

impl ParameterValue {
    /// Returns the value if it is a boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the value as an unsigned integer, if it is a non-negative integer.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Int64(value) => u64::try_from(*value).ok(),
            Self::Uint64(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the value if it is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(value) => Some(value),
            _ => None,
        }
    }
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int64(value) => value.fmt(f),
            Self::Uint64(value) => value.fmt(f),
            Self::Double(value) => value.fmt(f),
            Self::String(value) => QuotedName(value).fmt(f),
        }
    }
}

/// Checks the name of a request parameter: names starting with `triton_` are reserved for the protocol.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the name is reserved.
pub fn check_parameter_name(name: &str) -> Result<(), ServiceError> {
    if name.starts_with("triton_") {
        let reserved = format!(
            "parameter {}: names that start with 'triton_' are reserved",
            QuotedName(name)
        );
        return Err(ServiceError::invalid(reserved));
    }
    Ok(())
}

/// Removes a boolean parameter and returns it, if present.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the parameter is not a boolean.
pub fn take_bool(parameters: &mut Parameters, name: &str) -> Result<Option<bool>, ServiceError> {
    let Some(value) = parameters.remove(name) else {
        return Ok(None);
    };
    let wrong = || {
        ServiceError::invalid(format!(
            "parameter '{name}': expected true or false, found {value}"
        ))
    };
    value.as_bool().map(Some).ok_or_else(wrong)
}
