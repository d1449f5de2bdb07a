//! Handles the calls of the model repository extension.

use std::collections::BTreeMap;

use oip_service::{
    Grant, InferenceService,
    extensions::{self, check_repository_name},
};
use oip_types::{ModelIndexEntry, ParameterValue, Parameters, ServiceError};
use tensor_core::QuotedName;

use crate::proto::{
    ModelRepositoryParameter, RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest, model_repository_parameter::ParameterChoice,
    repository_index_response::ModelIndex,
};

pub(crate) fn index(
    service: &dyn InferenceService,
    request: &RepositoryIndexRequest,
    grant: Option<&Grant>,
) -> Result<RepositoryIndexResponse, ServiceError> {
    let index = extensions::index(service, request.ready)?;
    check_repository_name(&request.repository_name)?;
    let entry = |entry: ModelIndexEntry| ModelIndex {
        name: entry.name,
        version: entry.version.unwrap_or_default(),
        state: entry.state.map(|state| state.to_string()).unwrap_or_default(),
        reason: entry.reason,
    };
    let index = index
        .into_iter()
        .filter(|entry| grant.is_none_or(|grant| grant.check_model(&entry.name).is_ok()));
    Ok(RepositoryIndexResponse {
        models: index.map(entry).collect(),
    })
}

pub(crate) async fn load(
    service: &dyn InferenceService,
    request: RepositoryModelLoadRequest,
    grant: Option<&Grant>,
) -> Result<(), ServiceError> {
    extensions::repository(service)?;
    let model = model_name(&request.repository_name, &request.model_name)?;
    grant.map_or(Ok(()), |grant| grant.check_model(model))?;
    extensions::load(service, model, read_parameters(request.parameters)?).await
}

pub(crate) async fn unload(
    service: &dyn InferenceService,
    request: RepositoryModelUnloadRequest,
    grant: Option<&Grant>,
) -> Result<(), ServiceError> {
    extensions::repository(service)?;
    let model = model_name(&request.repository_name, &request.model_name)?;
    grant.map_or(Ok(()), |grant| grant.check_model(model))?;
    extensions::unload(service, model, read_parameters(request.parameters)?).await
}

/// Returns the name of the model in a request.
///
/// In KServe's messages, the model's name is in the field that Triton uses for the repository. If only the
/// repository is set, it is the model's name.
fn model_name<'a>(repository: &'a str, model: &'a str) -> Result<&'a str, ServiceError> {
    if model.is_empty() {
        return Ok(repository);
    }
    check_repository_name(repository).map(|()| model)
}

fn read_parameters(
    parameters: BTreeMap<String, ModelRepositoryParameter>,
) -> Result<Parameters, ServiceError> {
    let read = |(name, parameter): (String, ModelRepositoryParameter)| {
        let shown = QuotedName(&name);
        let value = match parameter.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => ParameterValue::Bool(value),
            Some(ParameterChoice::Int64Param(value)) => ParameterValue::Int64(value),
            Some(ParameterChoice::StringParam(value)) => ParameterValue::String(value),
            // Model files are sent as bytes. Their parameters are rejected later, by name.
            Some(ParameterChoice::BytesParam(_)) if name.starts_with("file:") => {
                ParameterValue::String(String::new())
            }
            Some(ParameterChoice::BytesParam(bytes)) => {
                let found = bytes.len();
                return Err(ServiceError::invalid(format!(
                    "parameter {shown}: expected a boolean, an integer or a string, found {found} bytes"
                )));
            }
            None => return Err(ServiceError::invalid(format!("parameter {shown} has no value"))),
        };
        Ok((name, value))
    };
    parameters.into_iter().map(read).collect()
}
