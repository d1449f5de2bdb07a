//! Types of the model repository extension: index, load and unload.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use tensor_core::QuotedName;

use crate::{ParameterValue, Parameters, ServiceError};

/// An entry of the repository index: one version of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelIndexEntry {
    /// The model's name.
    pub name: String,
    /// The version; `None` for models without versions and for models that were never loaded.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub version: Option<String>,
    /// The state; `None` for models that were never loaded.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub state: Option<ModelState>,
    /// The reason why this version is not ready, in human-readable form; may be empty.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "String::is_empty"))]
    pub reason: String,
}

/// The state of a model version, with Triton's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "UPPERCASE")
)]
pub enum ModelState {
    /// The state is unknown, or its name is unknown to this crate.
    Unknown,
    /// The version is ready for requests.
    Ready,
    /// The version failed to load, or was unloaded.
    Unavailable,
    /// The version is being loaded.
    Loading,
    /// The version is finishing its requests before it is unloaded.
    Unloading,
}

impl ModelState {
    /// Returns the state's name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }

    /// Returns the state for a name on the wire; unknown names map to [`ModelState::Unknown`].
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let all = [Self::Ready, Self::Unavailable, Self::Loading, Self::Unloading];
        all.into_iter()
            .find(|state| state.name() == name)
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for ModelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Options of a load request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadOptions {
    /// A model configuration in JSON that replaces the repository's.
    pub config: Option<String>,
    /// The model's files by path in its directory, such as `1/model.onnx`. Triton accepts such files;
    /// Tensorferry rejects them.
    pub files: BTreeMap<String, Bytes>,
}

impl LoadOptions {
    /// Returns the options with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Reads the parameters of a load request.
    ///
    /// Triton also lets clients send the model's files (`file:<path>`). Tensorferry runs only files that the
    /// operator put into the repository.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for unknown parameters and for files.
    pub fn read(parameters: Parameters) -> Result<Self, ServiceError> {
        let mut options = Self::default();
        for (name, value) in parameters {
            match (name.as_str(), value) {
                ("config", ParameterValue::String(config)) => options.config = Some(config),
                ("config", value) => {
                    let message = format!("parameter 'config': expected a string, found {value}");
                    return Err(ServiceError::invalid(message));
                }
                (name, _) => return Err(refuse_parameter(name, "config")),
            }
        }
        Ok(options)
    }
}

/// Options of an unload request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnloadOptions {
    /// Whether to also unload models that were loaded only as dependencies of the unloaded model.
    pub unload_dependents: bool,
}

impl UnloadOptions {
    /// Returns the options with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Reads the parameters of an unload request.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for unknown parameters.
    pub fn read(mut parameters: Parameters) -> Result<Self, ServiceError> {
        const UNLOAD_DEPENDENTS: &str = "unload_dependents";
        let unload_dependents = crate::take_bool(&mut parameters, UNLOAD_DEPENDENTS)?.unwrap_or(false);
        match parameters.keys().next() {
            None => Ok(Self { unload_dependents }),
            Some(name) => Err(refuse_parameter(name, UNLOAD_DEPENDENTS)),
        }
    }
}

fn refuse_parameter(name: &str, known: &str) -> ServiceError {
    let shown = QuotedName(name);
    ServiceError::invalid(match name.starts_with("file:") {
        true => {
            format!(
                "parameter {shown}: models cannot be uploaded in requests; put the file into the repository"
            )
        }
        false => format!("unexpected parameter {shown}; expected {known} or none"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_keep_their_names() {
        for state in [
            ModelState::Unknown,
            ModelState::Ready,
            ModelState::Unavailable,
            ModelState::Loading,
            ModelState::Unloading,
        ] {
            assert_eq!(ModelState::from_name(state.name()), state);
        }
        assert_eq!(ModelState::from_name("State.READY"), ModelState::Unknown);
    }

    /// Load requests with files are rejected.
    #[test]
    fn files_in_load_requests_are_refused() {
        let string = |text: &str| ParameterValue::String(text.to_owned());
        let load = |name: &str, value| LoadOptions::read(Parameters::from([(name.to_owned(), value)]));
        assert_eq!(
            load("config", string("{}")).unwrap().config.as_deref(),
            Some("{}")
        );
        let error = load("file:1/../../etc/x", string("AA==")).unwrap_err();
        assert!(
            error.message().contains("cannot be uploaded in requests"),
            "{error}"
        );
        assert!(load("config", ParameterValue::Bool(true)).is_err());
        assert!(load("else", string("")).is_err());
    }

    #[test]
    fn unload_parameters_are_checked() {
        let unload = |name: &str, value| UnloadOptions::read(Parameters::from([(name.to_owned(), value)]));
        assert!(
            unload("unload_dependents", ParameterValue::Bool(true))
                .unwrap()
                .unload_dependents
        );
        assert!(unload("unload_dependents", ParameterValue::Int64(1)).is_err());
        assert!(unload("else", ParameterValue::Bool(true)).is_err());
    }
}
