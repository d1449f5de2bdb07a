//! The trait that a model's author implements.

use oip_types::{InferOutput, InferRequest, ModelMetadata, Placement, ServiceError};

use crate::{Call, CancelToken, Outcome, RowIndependence};

/// A model that is ready to run: plain blocking code. The engine runs a model on its own threads, or on a
/// transport's thread if the model's runs are [bounded](Capabilities::bounded) and measured to be short.
///
/// There is one way to run a model. [`Model::run`] takes a [`Call`], which carries the request and everything
/// that a run may use: the cancel token, the server's other models, the sink for several responses, the parts
/// of a batched request. A model reads what it needs from the call and ignores the rest.
/// [`Model::capabilities`] declares what the model can do beyond one response to one request. The caller gets
/// the capabilities once, and sets only those fields of a call that the model supports.
///
/// | the model | declares | uses of its [`Call`] | returns |
/// |---|---|---|---|
/// | gives one response | nothing | [`request`](Call::request), [`cancel`](Call::cancel) | [`Outcome::Outputs`] |
/// | can fail some requests of a batch | [`row_independence`](Capabilities::row_independence) | [`parts`](Call::parts) | [`Outcome::Outputs`] with [`failed`](crate::Outputs::failed) |
/// | gives any number of responses | [`decoupled`](Capabilities::decoupled) | [`responses`](Call::responses) | [`Outcome::Streamed`] |
/// | calls other models | nothing | [`others`](Call::others) | any |
/// | runs elsewhere, such as in a process | [`elsewhere`](Capabilities::elsewhere) | [`patience`](Call::patience) | [`Outcome::Unfinished`] when it takes longer than that |
///
/// The caller checks the request against [`Model::metadata`] before the run, and checks and selects the
/// outputs after it. A model therefore never receives or sends a wrong shape, and may return outputs that
/// were not requested.
///
/// A wrapper modifies the call and passes it on: it replaces [`Call::request`], wraps [`Call::responses`],
/// and maps the outputs of every kind of outcome with [`Outcome::map`].
///
/// ```
/// use oip_model::{Call, Model, Outcome};
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
    /// Returns the model's name, inputs and outputs.
    fn metadata(&self) -> &ModelMetadata;

    /// Runs the model.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the model rejects the values of the
    /// inputs; [`Internal`](oip_types::ErrorCode::Internal) when the model fails. With [`Call::parts`] the
    /// error applies to all parts, and the engine then runs each part alone. With [`Call::responses`] the
    /// error follows the responses already sent; the error of
    /// [`ResponseSink::send`](crate::ResponseSink::send) is passed on.
    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError>;

    /// Returns what the model can do, and defaults for what its configuration does not set. Called once, when
    /// the model is loaded.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Stops the model, which receives no more requests. This may take about a second. The engine calls this
    /// method at least once, and never while a run is still hanging.
    fn end(&self) {}
}

/// Methods for callers without an engine, such as tests and tools.
impl dyn Model + '_ {
    /// Checks a request, runs it to one response, and selects the requested outputs.
    ///
    /// ```
    /// # use oip_model::{Call, CancelToken, Model, Outcome};
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
    /// Returns the errors of [`ModelMetadata::check_request`], [`Model::run`], [`Outcome::into_outputs`] and
    /// [`ModelMetadata::pick_outputs`].
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

/// The model's capabilities, and defaults for what its configuration does not set. The server chooses the
/// value of a field that is `None`.
///
/// ```
/// use oip_model::Capabilities;
///
/// let capabilities = Capabilities::default().with(|capabilities| capabilities.instances = Some(1));
/// assert_eq!(capabilities.max_batch_size, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's runtime that runs the model, such as `built-in` or `onnxruntime`; `None` if the backend
    /// has only one. The complete configuration shows this name.
    pub runtime: Option<String>,
    /// The devices and execution providers that the model runs on, if its backend has a choice. The
    /// configuration cannot change them after loading.
    pub placement: Option<Placement>,
    /// Whether the model's rows are independent. An engine batches requests from different callers together
    /// only if this field, [`Self::max_batch_size`] or the configuration allows it.
    pub row_independence: RowIndependence,
    /// Maximum number of rows of a run; the server may use fewer. A positive value declares the rows
    /// independent if [`Self::row_independence`] is unproven, so that requests are batched together. With 0,
    /// requests are never batched.
    pub max_batch_size: Option<u32>,
    /// Whether requests are batched only if the configuration has `dynamic_batching`, as for Triton's Python
    /// models.
    pub joined_only_when_told: bool,
    /// Number of instances of the model; `None` leaves the choice to the server.
    pub instances: Option<u32>,
    /// Whether the model sends any number of responses to a request, through [`Call::responses`]. Sets the
    /// transaction policy `decoupled` of its configuration.
    pub decoupled: bool,
    /// Whether outputs may be memory that the model keeps, such as a table that it loaded, or memory that it
    /// has charged to a budget itself. For such a model, only outputs without another owner are charged to
    /// the request.
    pub lends_memory: bool,
    /// Whether a run's duration depends only on the number of rows. The number of rows is the first dimension
    /// of the inputs for which [`Model::metadata`] leaves it free; all other dimensions are fixed. A run
    /// needs no preparation, does not depend on the inputs' values, and waits for no files, processes,
    /// devices or user code.
    ///
    /// The value true is a promise: an engine may run such a model on a thread of the transport, where a hang
    /// would block other clients' requests.
    pub bounded: bool,
    /// Whether runs take place outside the calling thread, such as in a separate process, so that the caller
    /// only waits. Such a model honors [`Call::patience`].
    pub elsewhere: bool,
}

impl Capabilities {
    /// Returns the capabilities after `change`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
