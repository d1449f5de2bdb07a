//! Converts parameters between messages and `oip_types`.

use std::collections::BTreeMap;

use oip_types::{ParameterValue, Parameters};
#[cfg(feature = "client")]
use oip_types::{RequestLimits, ServiceError};
#[cfg(feature = "client")]
use tensor_core::QuotedName;

use crate::proto::{InferParameter, infer_parameter::ParameterChoice};

/// Decodes parameters; fails if there are more than `limits` allows.
#[cfg(feature = "client")]
pub(crate) fn read_parameters(
    parameters: BTreeMap<String, InferParameter>,
    limits: &RequestLimits,
) -> Result<Parameters, ServiceError> {
    limits.check_parameters(parameters.len())?;
    let read = |(name, parameter): (String, InferParameter)| {
        let value = match parameter.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => ParameterValue::Bool(value),
            Some(ParameterChoice::Int64Param(value)) => ParameterValue::Int64(value),
            Some(ParameterChoice::Uint64Param(value)) => ParameterValue::Uint64(value),
            Some(ParameterChoice::DoubleParam(value)) => ParameterValue::Double(value),
            Some(ParameterChoice::StringParam(value)) => ParameterValue::String(value),
            None => {
                return Err(ServiceError::invalid(format!(
                    "parameter {} has no value",
                    QuotedName(&name)
                )));
            }
        };
        Ok((name, value))
    };
    parameters.into_iter().map(read).collect()
}

/// Encodes parameters as fields of a message.
pub(crate) fn write_parameters(parameters: Parameters) -> BTreeMap<String, InferParameter> {
    let write = |(name, value)| {
        let choice = match value {
            ParameterValue::Bool(value) => ParameterChoice::BoolParam(value),
            ParameterValue::Int64(value) => ParameterChoice::Int64Param(value),
            ParameterValue::Uint64(value) => ParameterChoice::Uint64Param(value),
            ParameterValue::Double(value) => ParameterChoice::DoubleParam(value),
            ParameterValue::String(value) => ParameterChoice::StringParam(value),
            // Unknown kinds of values are sent as strings.
            other => ParameterChoice::StringParam(other.to_string()),
        };
        (
            name,
            InferParameter {
                parameter_choice: Some(choice),
            },
        )
    };
    parameters.into_iter().map(write).collect()
}
