use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_types::{
    InferOutput, InferRequest, ModelConfig, ModelMetadata, Placement, ServiceError,
    model_config::{InputConfig, OutputConfig},
};

use crate::{AnswerSink, CancelToken, OtherModels, RowIndependence};

/// A model that is ready to run: plain blocking code, called on the engine's own threads, or on a transport's thread if it is
/// [bounded](Model::is_bounded) and measured to be quick.
///
/// The engine has checked the request against [`Model::metadata`] before, and checks the outputs afterwards, so a
/// model neither meets a wrong shape nor can send one.
///
/// ```
/// use oip_service::{CancelToken, Model};
/// use oip_types::{DataType, InferOutput, InferRequest, ModelMetadata, ServiceError, TensorMetadata};
/// use tensor_core::Tensor;
///
/// struct Doubler(ModelMetadata);
///
/// impl Model for Doubler {
///     fn metadata(&self) -> &ModelMetadata {
///         &self.0
///     }
///
///     fn infer(&self, mut request: InferRequest, _: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
///         let x = request.take_input("x")?;
///         let x = x.as_fixed().ok_or_else(|| ServiceError::internal("x is FP32"))?;
///         let doubled = x.view().iter::<f32>().map_err(|e| ServiceError::internal(e.to_string()))?.map(|x| 2.0 * x);
///         let y = Tensor::from_vec(x.shape().clone(), doubled.collect());
///         Ok(vec![InferOutput::new("y", y.map_err(|e| ServiceError::internal(e.to_string()))?)])
///     }
/// }
/// ```
pub trait Model: Send + Sync + 'static {
    /// The model's name, inputs and outputs.
    fn metadata(&self) -> &ModelMetadata;

    /// Answers one request. Outputs that were not requested may be left out.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the input's values make no sense to the
    /// model; [`Internal`](oip_types::ErrorCode::Internal) when the model fails.
    fn infer(&self, request: InferRequest, cancel: &CancelToken) -> Result<Vec<InferOutput>, ServiceError>;

    /// Answers one request as often as it likes. Called instead of [`Model::infer`] for models whose configuration has the
    /// transaction policy `decoupled`, which [`ModelDefaults::decoupled`] sets. Unless a model says otherwise it answers once.
    ///
    /// # Errors
    /// As [`Model::infer`], after the answers that were given before; what [`AnswerSink::send`] said.
    fn infer_several(
        &self,
        request: InferRequest,
        cancel: &CancelToken,
        answers: &mut dyn AnswerSink,
    ) -> Result<(), ServiceError> {
        answers.send_last(self.infer(request, cancel)?)
    }

    /// As [`Model::infer`], with the server's other models at hand. This is what an engine calls; models that ask no others leave
    /// it alone.
    ///
    /// # Errors
    /// As [`Model::infer`].
    fn infer_with(
        &self,
        request: InferRequest,
        cancel: &CancelToken,
        _others: &dyn OtherModels,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        self.infer(request, cancel)
    }

    /// As [`Model::infer_with`], for requests that were joined into one, of which [`InferRequest::parts`] tells. A model that tells
    /// them apart can fail some of them and answer the others.
    ///
    /// # Errors
    /// As [`Model::infer`], for all of them: the engine then runs each by itself.
    fn infer_joined(
        &self,
        request: InferRequest,
        cancel: &CancelToken,
        others: &dyn OtherModels,
    ) -> Result<JoinedAnswer, ServiceError> {
        Ok(JoinedAnswer::new(self.infer_with(request, cancel, others)?))
    }

    /// As [`Model::infer_several`], with the server's other models at hand.
    ///
    /// # Errors
    /// As [`Model::infer_several`].
    fn infer_several_with(
        &self,
        request: InferRequest,
        cancel: &CancelToken,
        answers: &mut dyn AnswerSink,
        _others: &dyn OtherModels,
    ) -> Result<(), ServiceError> {
        self.infer_several(request, cancel, answers)
    }

    /// Whether outputs may be memory that the model keeps, such as a table it was loaded with, or that it has charged to
    /// a budget itself. Of such a model, only outputs that nobody else holds are charged to the request.
    fn lends_memory(&self) -> bool {
        false
    }

    /// Whether the time of a run with so many rows follows from that alone, now: nothing is prepared first, nothing in the
    /// inputs' values makes it longer, and it waits for no files, processes, devices or people's code. `rows` is the first
    /// dimension of those inputs for which [`Model::metadata`] leaves it free; all others are fixed.
    ///
    /// This is a promise: an engine may run such a model on a thread of the transport, where one that hangs takes others'
    /// requests with it. Asked before each such run, so it should be quick itself.
    fn is_bounded(&self, _rows: u64) -> bool {
        false
    }

    /// Whether [`Model::begin`] is back in time: for models that run elsewhere, such as in a process of their own, so that the
    /// caller's thread only waits for them.
    fn can_begin(&self) -> bool {
        false
    }

    /// Begins a run, and waits for its end for no longer than about `patience`; what is left of it then can be done on another
    /// thread. Called instead of [`Model::infer_with`] on threads of the transport, for models that [can](Model::can_begin).
    ///
    /// All else that may take long is left too: asking other models, reading large outputs, finding out why a process is gone.
    fn begin(&self, request: InferRequest, cancel: &CancelToken, _patience: Duration) -> Begun {
        Begun::Done(self.infer(request, cancel))
    }

    /// Ends the model, for which no request will come any more; what it needs for that may take a second or so. Called once
    /// or more often, and not at all when a thread still hangs in it.
    fn end(&self) {}

    /// Which of its backend's runtimes runs it, such as `built-in` or `onnxruntime`; `None` where the backend has only one. The complete
    /// configuration shows it.
    fn runtime(&self) -> Option<&str> {
        None
    }

    /// How the model is to be run where its configuration does not say.
    fn defaults(&self) -> ModelDefaults {
        ModelDefaults::default()
    }

    /// Whether its rows are independent. An engine joins requests of different callers only where a model says so, or where
    /// [`ModelDefaults::max_batch_size`] or the configuration does. Asked once, when the model is loaded.
    fn row_independence(&self) -> RowIndependence {
        RowIndependence::default()
    }
}

/// The answer to requests that were joined into one.
///
/// ```
/// use oip_service::JoinedAnswer;
/// use oip_types::ServiceError;
///
/// let mut answer = JoinedAnswer::new(vec![]);
/// answer.failed.push((1, ServiceError::invalid("the second request makes no sense")));
/// assert!(answer.outputs.is_empty());
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct JoinedAnswer {
    /// The outputs, with the rows of all requests; those of failed ones may hold anything. Empty if all have failed.
    pub outputs: Vec<InferOutput>,
    /// The requests that failed, by their place among [`InferRequest::parts`], and why.
    pub failed: Vec<(usize, ServiceError)>,
}

impl JoinedAnswer {
    /// An answer to all of them.
    #[must_use]
    pub fn new(outputs: Vec<InferOutput>) -> Self {
        Self {
            outputs,
            failed: Vec::new(),
        }
    }
}

/// A run that was [begun](Model::begin).
pub enum Begun {
    /// It is over.
    Done(Result<Vec<InferOutput>, ServiceError>),
    /// It goes on; this does the rest.
    Unfinished(RestOfRun),
}

/// The rest of a run that was [begun](Model::begin): plain blocking code, as [`Model::infer_with`]. A run whose rest is dropped
/// is given up.
pub type RestOfRun =
    Box<dyn FnOnce(&CancelToken, &dyn OtherModels) -> Result<Vec<InferOutput>, ServiceError> + Send>;

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(given) => f.debug_tuple("Done").field(given).finish(),
            Self::Unfinished(_) => f.debug_tuple("Unfinished").finish_non_exhaustive(),
        }
    }
}

/// How a model is to be run where its configuration does not say; what is `None` is up to the server.
///
/// ```
/// let defaults = oip_service::ModelDefaults::default().with(|defaults| defaults.instances = Some(1));
/// assert_eq!(defaults.max_batch_size, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelDefaults {
    /// The most rows of one run; the server may give fewer. Above 0 this says that rows are independent where
    /// [`Model::row_independence`] does not know, so that requests are joined; with 0 they are not, whatever that says.
    pub max_batch_size: Option<u32>,
    /// How many instances there are.
    pub instances: Option<u32>,
    /// Whether it gives any number of answers to a request, by [`Model::infer_several`].
    pub decoupled: bool,
    /// Whether requests are joined only where its configuration has `dynamic_batching`, as Triton's Python models are.
    pub joined_only_when_told: bool,
    /// On what it runs, where its backend has a choice. Unlike the rest this is not up to the configuration any more: the model is loaded.
    pub placement: Option<Placement>,
}

impl ModelDefaults {
    /// The same after some changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

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
