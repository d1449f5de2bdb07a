//! Loading: what an author of a backend implements, and what it is given.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Instant};

use bytes::Bytes;
use oip_types::{
    ModelConfig, ServiceError,
    model_config::{InputConfig, OutputConfig},
};

use crate::Model;

/// Makes models from files: one per kind of model.
pub trait Backend: Send + Sync + 'static {
    /// The name people know the backend by, such as `onnx`.
    fn name(&self) -> &'static str;

    /// Other names for it in a configuration's fields `backend` and `platform`, such as the names that
    /// Triton has for the same kind of model.
    fn other_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// The names of the files in a model's folder that this backend loads, such as `model.onnx`; if there are several,
    /// the first is taken.
    fn file_names(&self) -> &[&str];

    /// Whether its files may be the weights of a model whose computation another program knows. Where a configuration in the
    /// Hugging Face format stands next to such a file, the file is served only when the operator asks for it.
    fn holds_weights_only(&self) -> bool {
        false
    }

    /// The names of the files in the same folder that a model with this content needs, such as its weights. They are
    /// opened under the same rules as the model's own file, and given to [`Backend::load`].
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the content cannot be read, or asks for what is not
    /// in its folder.
    fn files_beside(&self, _content: &Bytes) -> Result<Vec<String>, ServiceError> {
        Ok(vec![])
    }

    /// Whether a directory that has one of [its files](Self::file_names) is one of its models. Where it is not, other backends that have a
    /// file of that name are asked.
    fn accepts(&self, _files: &dyn ModelFiles) -> bool {
        true
    }

    /// Reads the files that a model with this content needs, by their paths in its directory. Unless a backend says otherwise these are
    /// those of [`Backend::files_beside`].
    ///
    /// # Errors
    /// As [`Backend::files_beside`] and [`ModelFiles::read`].
    fn gather(&self, content: &Bytes, files: &dyn ModelFiles) -> Result<Vec<(String, Bytes)>, ServiceError> {
        let names = self.files_beside(content)?.into_iter();
        let files = names.map(|name| files.read(&name).map(|content| (name, content)));
        files.collect()
    }

    /// Loads a model. May take long and may panic: the engine calls it on a thread of its own and catches both.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the file is no good model, or asks for what
    /// the backend cannot do; the message says what, and what to do about it.
    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError>;
}

/// The files of a model's directory, under the rules of its repository.
pub trait ModelFiles {
    /// Whether there is a file at a path below the directory.
    fn has(&self, path: &str) -> bool;

    /// Reads a file at a path below the directory.
    ///
    /// # Errors
    /// What is wrong with the path or the file.
    fn read(&self, path: &str) -> Result<Bytes, ServiceError>;
}

/// Where a model comes from.
///
/// ```
/// use oip_service::ModelSource;
///
/// let source = ModelSource::new("digits", "1", "digits/1/model.onnx", b"...".as_slice().into());
/// assert!(source.beside.is_empty());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelSource {
    /// The model's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The model file, for messages and for backends that must look beside it.
    pub path: PathBuf,
    /// The model file's content, read once: what happens to the file afterwards does not matter.
    pub content: Bytes,
    /// The other files that [`Backend::files_beside`] asked for, by their names.
    pub beside: Vec<(String, Bytes)>,
}

impl ModelSource {
    /// A model file's content, without other files beside it.
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

    /// The same with the files that stand beside it.
    #[must_use]
    pub fn with_beside(self, beside: Vec<(String, Bytes)>) -> Self {
        Self { beside, ..self }
    }
}

/// Under which conditions a model is loaded.
///
/// ```
/// use oip_service::LoadContext;
/// use std::time::{Duration, Instant};
///
/// let cx = LoadContext::default().with_deadline(Some(Instant::now() + Duration::from_secs(60)));
/// assert!(cx.config.parameters.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadContext {
    /// The time after which loading is given up; a backend that loads in steps looks at it.
    pub deadline: Option<Instant>,
    /// The model's configuration as the operator wrote it: what is not written is empty. A backend finds its own settings
    /// in `runtime` and `parameters`.
    pub config: Arc<ModelConfig>,
    /// The dimensions that the configuration gives to inputs.
    pub input_dims: Arc<InputDims>,
    /// The inputs and outputs that the configuration describes.
    pub tensors: Arc<ConfiguredTensors>,
    /// Whether the caller can give the model a process of its own. A backend then fails with [`NeedsProcess`] as the cause where a
    /// request could end the process.
    pub can_isolate: bool,
}

/// Why a model is not loaded into a process that others use: a request could end it.
///
/// ```
/// use oip_service::NeedsProcess;
/// use oip_types::ServiceError;
///
/// let reason = NeedsProcess::new("its divisor can be 0");
/// let error = ServiceError::invalid(reason.to_string()).caused_by(reason);
/// assert_eq!(NeedsProcess::behind(&error).map(ToString::to_string).as_deref(), Some("its divisor can be 0"));
/// ```
#[derive(Clone, Debug)]
pub struct NeedsProcess(String);

impl NeedsProcess {
    /// A reason, for people.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// The reason behind an error, if it is one.
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

/// The inputs and outputs of which a model's configuration has both datatype and dimensions. The batch's dimension is not
/// among those where [`ModelConfig::max_batch_size`] is above 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfiguredTensors {
    /// The inputs, as they are written.
    pub inputs: Vec<InputConfig>,
    /// The outputs, as they are written.
    pub outputs: Vec<OutputConfig>,
}

/// What a model's configuration says of its inputs' dimensions: by the input's name, and as they are written. -1 is a free
/// one; the batch's dimension is not written where `max_batch_size` is above 0, and may be left out where nothing is said of it.
pub type InputDims = BTreeMap<String, Vec<i64>>;

impl LoadContext {
    /// The same with a time after which loading is given up.
    #[must_use]
    pub fn with_deadline(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// The same with a model's configuration.
    #[must_use]
    pub fn with_config(self, config: Arc<ModelConfig>) -> Self {
        Self { config, ..self }
    }

    /// The same with what the configuration says of the inputs' dimensions.
    #[must_use]
    pub fn with_input_dims(self, input_dims: Arc<InputDims>) -> Self {
        Self { input_dims, ..self }
    }

    /// The same where the caller can give the model a process of its own.
    #[must_use]
    pub fn with_isolation(self, can_isolate: bool) -> Self {
        Self { can_isolate, ..self }
    }

    /// The same with the inputs and outputs that the configuration describes.
    #[must_use]
    pub fn with_tensors(self, tensors: Arc<ConfiguredTensors>) -> Self {
        Self { tensors, ..self }
    }
}
