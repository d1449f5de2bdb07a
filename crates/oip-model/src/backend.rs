//! The `Backend` trait, which loads models, and its arguments.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Instant};

use bytes::Bytes;
use oip_types::{
    ModelConfig, ServiceError,
    model_config::{InputConfig, OutputConfig},
};

use crate::Model;

/// Loads the models of one kind from files.
pub trait Backend: Send + Sync + 'static {
    /// Returns the backend's name for users, such as `onnx`.
    fn name(&self) -> &'static str;

    /// Returns other names for the backend that a configuration may use in its fields `backend` and
    /// `platform`, such as Triton's names for the same kind of model.
    fn other_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the names of the files in a model's directory that this backend loads, such as `model.onnx`.
    /// If several of the files exist, the first one is loaded.
    fn file_names(&self) -> &[&str];

    /// Returns whether this backend's files may contain only weights, without the computation that uses them.
    /// If a Hugging Face configuration is next to such a file, the file is served only when the operator asks
    /// for it.
    fn holds_weights_only(&self) -> bool {
        false
    }

    /// Returns the names of the files in the same directory that a model with this content needs, such as a
    /// file with its weights. These files are opened under the same rules as the model's own file, and passed
    /// to [`Backend::load`].
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the content cannot be parsed, or
    /// refers to a file outside its directory.
    fn files_beside(&self, _content: &Bytes) -> Result<Vec<String>, ServiceError> {
        Ok(vec![])
    }

    /// Returns whether a directory that has one of the [backend's files](Self::file_names) is a model of this
    /// backend. If not, other backends that load a file of the same name are tried.
    fn accepts(&self, _files: &dyn ModelFiles) -> bool {
        true
    }

    /// Reads the files that a model with this content needs, and returns them with their paths in the model's
    /// directory. By default these files are the ones that [`Backend::files_beside`] names.
    ///
    /// # Errors
    /// See [`Backend::files_beside`] and [`ModelFiles::read`].
    fn gather(&self, content: &Bytes, files: &dyn ModelFiles) -> Result<Vec<(String, Bytes)>, ServiceError> {
        let names = self.files_beside(content)?.into_iter();
        let files = names.map(|name| files.read(&name).map(|content| (name, content)));
        files.collect()
    }

    /// Loads a model. Loading may take a long time and may panic, so the engine calls this method on a
    /// separate thread and catches panics.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the model is invalid or needs an
    /// unsupported feature. The message names the feature and says what the operator can do about it.
    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError>;
}

/// The files of a model's directory, under the access rules of its repository.
pub trait ModelFiles {
    /// Returns whether there is a file at a path relative to the directory.
    fn has(&self, path: &str) -> bool;

    /// Reads the file at a path relative to the directory.
    ///
    /// # Errors
    /// Returns the reason why the path or the file was refused.
    fn read(&self, path: &str) -> Result<Bytes, ServiceError>;
}

/// The files and the name of a model to load.
///
/// ```
/// use oip_model::ModelSource;
///
/// let source = ModelSource::new("digits", "1", "digits/1/model.onnx", b"...".as_slice().into());
/// assert!(source.beside.is_empty());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelSource {
    /// Name under which clients request the model.
    pub name: String,
    /// Version of the model.
    pub version: String,
    /// The model file's path, for messages and for backends that must read files next to it.
    pub path: PathBuf,
    /// Content of the model file. The file is read once, so later changes to it have no effect.
    pub content: Bytes,
    /// The other files that [`Backend::files_beside`] returned, with their names.
    pub beside: Vec<(String, Bytes)>,
}

impl ModelSource {
    /// Creates a source with a model file's content and no other files.
    pub fn new(
        name: impl Into<String>,
        version: impl Into<String>,
        path: impl Into<PathBuf>,
        content: Bytes,
    ) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            path: path.into(),
            content,
            beside: Vec::new(),
        }
    }

    /// Returns the source with the files next to the model file.
    #[must_use]
    pub fn with_beside(self, beside: Vec<(String, Bytes)>) -> Self {
        Self { beside, ..self }
    }
}

/// The settings under which a model is loaded.
///
/// ```
/// use oip_model::LoadContext;
/// use std::time::{Duration, Instant};
///
/// let cx = LoadContext::default().with_deadline(Some(Instant::now() + Duration::from_secs(60)));
/// assert!(cx.config.parameters.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadContext {
    /// The deadline for loading. A backend that loads in steps should check it.
    pub deadline: Option<Instant>,
    /// The model's configuration as the operator wrote it; fields that are not set are empty. A backend finds
    /// its own settings in `runtime` and `parameters`.
    pub config: Arc<ModelConfig>,
    /// The input dimensions from the configuration.
    pub input_dims: Arc<InputDims>,
    /// The inputs and outputs from the configuration.
    pub tensors: Arc<ConfiguredTensors>,
    /// Whether the caller can run the model in a separate process. If so, a backend whose model could crash
    /// the process fails to load it with the cause [`NeedsProcess`].
    pub can_isolate: bool,
}

/// The reason why a model must not run in a shared process: a request could crash it.
///
/// ```
/// use oip_model::NeedsProcess;
/// use oip_types::ServiceError;
///
/// let reason = NeedsProcess::new("its divisor can be 0");
/// let error = ServiceError::invalid(reason.to_string()).caused_by(reason);
/// assert_eq!(NeedsProcess::behind(&error).map(ToString::to_string).as_deref(), Some("its divisor can be 0"));
/// ```
#[derive(Clone, Debug)]
pub struct NeedsProcess(String);

impl NeedsProcess {
    /// Creates the cause from a human-readable reason.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// Returns the [`NeedsProcess`] that caused `error`, if any.
    #[must_use]
    pub fn behind(error: &ServiceError) -> Option<&Self> {
        oip_types::causes(error).find_map(|cause| cause.downcast_ref())
    }
}

impl fmt::Display for NeedsProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NeedsProcess {}

/// The inputs and outputs for which a model's configuration gives both datatype and dimensions. The batch
/// dimension is not included if [`ModelConfig::max_batch_size`] is above 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfiguredTensors {
    /// The inputs, as configured.
    pub inputs: Vec<InputConfig>,
    /// The outputs, as configured.
    pub outputs: Vec<OutputConfig>,
}

/// The dimensions that a model's configuration declares for its inputs, keyed by input name. -1 is a free
/// dimension. The batch dimension is not included if `max_batch_size` is above 0. Inputs without declared
/// dimensions may be left out.
pub type InputDims = BTreeMap<String, Vec<i64>>;

impl LoadContext {
    /// Returns the context with a deadline for loading.
    #[must_use]
    pub fn with_deadline(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// Returns the context with a model's configuration.
    #[must_use]
    pub fn with_config(self, config: Arc<ModelConfig>) -> Self {
        Self { config, ..self }
    }

    /// Returns the context with the configured dimensions of the inputs.
    #[must_use]
    pub fn with_input_dims(self, input_dims: Arc<InputDims>) -> Self {
        Self { input_dims, ..self }
    }

    /// Returns the context with `can_isolate` set.
    #[must_use]
    pub fn with_isolation(self, can_isolate: bool) -> Self {
        Self { can_isolate, ..self }
    }

    /// Returns the context with the configured inputs and outputs.
    #[must_use]
    pub fn with_tensors(self, tensors: Arc<ConfiguredTensors>) -> Self {
        Self { tensors, ..self }
    }
}
