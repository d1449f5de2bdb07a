//! A model that runs: what an author of a model implements.

use oip_types::{InferOutput, InferRequest, ModelMetadata, Placement, ServiceError};

use crate::{Call, CancelToken, Outcome, RowIndependence};

/// A model that is ready to run: plain blocking code, called on the engine's own threads, or on a transport's thread if its runs
/// are [bounded](Capabilities::bounded) and measured to be quick.
///
/// There is one way to run a model. [`Model::run`] takes a [`Call`], which carries the request and everything that a run may use:
/// the cancel token, the server's other models, the sink for several responses, the parts of joined requests. A model reads what it
/// needs and ignores the rest. What it can do beyond one response to one request is one value, [`Model::capabilities`]; the caller
/// asks for it once and offers in its calls only what the model can take.
///
/// | the model | says so by | finds in its [`Call`] | returns |
/// |---|---|---|---|
/// | gives one response | nothing | [`request`](Call::request), [`cancel`](Call::cancel) | [`Outcome::Outputs`] |
/// | can fail some of several joined requests | [`row_independence`](Capabilities::row_independence) | [`parts`](Call::parts) | [`Outcome::Outputs`] with [`failed`](crate::Outputs::failed) |
/// | gives any number of responses | [`decoupled`](Capabilities::decoupled) | [`responses`](Call::responses) | [`Outcome::Streamed`] |
/// | asks other models | nothing | [`others`](Call::others) | any |
/// | runs elsewhere, such as in a process | [`elsewhere`](Capabilities::elsewhere) | [`patience`](Call::patience) | [`Outcome::Unfinished`] when it takes longer |
///
/// The caller has checked the request against [`Model::metadata`] before, and checks and picks the outputs afterwards: a model
/// neither meets a wrong shape nor can send one, and may return outputs that were not requested.
///
/// A wrapper changes what it is about and passes the call on: it replaces [`Call::request`], wraps [`Call::responses`], and maps the
/// outputs of every kind of outcome by [`Outcome::map`].
///
/// ```
/// use oip_service::{Call, Model, Outcome};
/// use oip_types::{ModelMetadata, ServiceError};
///
/// struct Double(ModelMetadata);
///
/// impl Model for Double {
///     fn metadata(&self) -> &ModelMetadata {
///         &self.0
///     }
///
///     fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
///         let x = call.request.take::<f32>("x")?;
///         Ok(Outcome::output("y", x.map(|x| 2.0 * x)))
///     }
/// }
/// ```
pub trait Model: Send + Sync + 'static {
    /// The model's name, inputs and outputs.
    fn metadata(&self) -> &ModelMetadata;

    /// Runs the model.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the inputs' values make no sense to the model;
    /// [`Internal`](oip_types::ErrorCode::Internal) when the model fails. With [`Call::parts`] the error is for all of them: the
    /// engine then runs each by itself. With [`Call::responses`] it ends the responses that were sent before; the error of
    /// [`ResponseSink::send`](crate::ResponseSink::send) is passed on.
    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError>;

    /// What the model can do, and how it is to be run where its configuration does not say. Asked once, when the model is loaded.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Ends the model, for which no request will come any more; what it needs for that may take a second or so. Called once
    /// or more often, and not at all when a thread still hangs in it.
    fn end(&self) {}
}

/// For callers that have no engine, such as tests and tools.
impl dyn Model + '_ {
    /// Checks a request, runs it to one response, and picks the outputs that it asks for.
    ///
    /// ```
    /// # use oip_service::{Call, CancelToken, Model, Outcome};
    /// # use oip_types::{DataType, InferRequest, ModelMetadata, ModelRef, ServiceError, TensorMetadata};
    /// # struct Double(ModelMetadata);
    /// # impl Model for Double {
    /// #     fn metadata(&self) -> &ModelMetadata {
    /// #         &self.0
    /// #     }
    /// #     fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
    /// #         Ok(Outcome::output("y", call.request.take::<f32>("x")?.map(|x| 2.0 * x)))
    /// #     }
    /// # }
    /// # let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    /// let model: Box<dyn Model> = Box::new(Double(ModelMetadata::new("double", "example", tensor("x"), tensor("y"))));
    /// let request = InferRequest::new(ModelRef::new("double", None)?).with_input("y", tensor_core::Tensor::scalar(1.0f32));
    /// let error = model.infer(request, &CancelToken::new(None)).unwrap_err();
    /// assert!(error.message().starts_with("unexpected input 'y'"));
    /// # Ok::<(), ServiceError>(())
    /// ```
    ///
    /// # Errors
    /// As [`ModelMetadata::check_request`], [`Model::run`], [`Outcome::into_outputs`] and [`ModelMetadata::pick_outputs`].
    pub fn infer(
        &self,
        request: InferRequest,
        cancel: &CancelToken,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        self.metadata().check_request(&request)?;
        let wanted = request.outputs.clone();
        let outputs = self.run(Call::new(request, cancel))?.into_outputs()?;
        self.metadata().pick_outputs(&wanted, outputs)
    }
}

/// What a model can do, and how it is to be run where its configuration does not say; what is `None` is up to the server.
///
/// ```
/// use oip_service::Capabilities;
///
/// let capabilities = Capabilities::default().with(|capabilities| capabilities.instances = Some(1));
/// assert_eq!(capabilities.max_batch_size, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Which of its backend's runtimes runs it, such as `built-in` or `onnxruntime`; `None` where the backend has only one. The
    /// complete configuration shows it.
    pub runtime: Option<String>,
    /// Devices and execution providers that it runs on, if its backend has a choice. The configuration cannot change it any more,
    /// since the model is loaded.
    pub placement: Option<Placement>,
    /// Whether its rows are independent. An engine joins requests of different callers only where a model says so, or where
    /// [`Self::max_batch_size`] or the configuration does.
    pub row_independence: RowIndependence,
    /// The most rows of one run; the server may give fewer. Above 0 this says that rows are independent where
    /// [`Self::row_independence`] does not know, so that requests are joined; with 0 they are not, whatever that says.
    pub max_batch_size: Option<u32>,
    /// Whether requests are joined only where its configuration has `dynamic_batching`, as Triton's Python models are.
    pub joined_only_when_told: bool,
    /// How many instances there are.
    pub instances: Option<u32>,
    /// Whether it gives any number of responses to a request, by [`Call::responses`]: sets the transaction policy `decoupled` of its
    /// configuration.
    pub decoupled: bool,
    /// Whether outputs may be memory that the model keeps, such as a table it was loaded with, or that it has charged to
    /// a budget itself. Of such a model, only outputs that nobody else holds are charged to the request.
    pub lends_memory: bool,
    /// Whether the time of a run follows from the number of rows alone, which is the first dimension of those inputs for which
    /// [`Model::metadata`] leaves it free; all others are fixed. Nothing is prepared first, nothing in the inputs' values makes a
    /// run longer, and it waits for no files, processes, devices or people's code.
    ///
    /// This is a promise: an engine may run such a model on a thread of the transport, where a model that hangs takes the requests
    /// of others with it.
    pub bounded: bool,
    /// Whether runs take place elsewhere, such as in a process of the model's own, so that the caller's thread only waits for them.
    /// Such a model keeps to [`Call::patience`].
    pub elsewhere: bool,
}

impl Capabilities {
    /// The same after some changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
