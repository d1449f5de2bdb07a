use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use tensor_core::Quoted;

use crate::{ParameterValue, Parameters, ServiceError};

/// A version of a model in the repository's index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelIndexEntry {
    /// The model's name.
    pub name: String,
    /// The version; none for models without versions and for those that were never loaded.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub version: Option<String>,
    /// How it is; none for models that were never loaded.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub state: Option<ModelState>,
    /// Why it is not ready, for people; empty when there is nothing to say.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "String::is_empty"))]
    pub reason: String,
}

/// How a version of a model is, by the names that Triton gives the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "UPPERCASE")
)]
pub enum ModelState {
    /// Unknown.
    Unknown,
    /// It takes requests.
    Ready,
    /// It does not: it failed to load, or was unloaded.
    Unavailable,
    /// It is being loaded.
    Loading,
    /// It finishes what it has and goes.
    Unloading,
}

impl ModelState {
    /// The name on the wire.
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

    /// The state of a name on the wire; what is no known name is [`ModelState::Unknown`].
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

/// How a model is to be loaded, beyond what stands in the repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadOptions {
    /// A model configuration in JSON that holds instead of the repository's.
    pub config: Option<String>,
    /// The model's files by their paths in its folder, such as `1/model.onnx`. Triton takes them; Tensorferry refuses them.
    pub files: BTreeMap<String, Bytes>,
}

impl LoadOptions {
    /// The same after some changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Reads the parameters of a load request.
    ///
    /// Triton lets a client send the model's files as well (`file:<path>`). That is not offered: what runs is what the
    /// operator put into the repository.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for parameters that are not known, and for files.
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

/// How a model is to be unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnloadOptions {
    /// Whether models that were loaded only because of this one go as well.
    pub unload_dependents: bool,
}

impl UnloadOptions {
    /// The same after some changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Reads the parameters of an unload request.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for parameters that are not known.
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
    let shown = Quoted(name);
    ServiceError::invalid(match name.starts_with("file:") {
        true => {
            format!("parameter {shown}: models are not taken from requests; put the file into the repository")
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

    /// MR-05: files do not come by API.
    #[test]
    fn mr_05_files_in_load_requests_are_refused() {
        let string = |text: &str| ParameterValue::String(text.to_owned());
        let load = |name: &str, value| LoadOptions::read(Parameters::from([(name.to_owned(), value)]));
        assert_eq!(
            load("config", string("{}")).unwrap().config.as_deref(),
            Some("{}")
        );
        let error = load("file:1/../../etc/x", string("AA==")).unwrap_err();
        assert!(error.message().contains("not taken from requests"), "{error}");
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
