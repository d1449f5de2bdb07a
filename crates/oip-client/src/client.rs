use std::{fmt, pin::Pin};

use bytes::Bytes;
use futures_core::Stream;
use oip_types::{
    CudaMemoryRegion, InferRequest, InferResponse, LoadOptions, LogSettings, ModelConfig, ModelIndexEntry,
    ModelMetadata, ModelRef, ModelStatistics, ServerMetadata, SharedMemoryRegion, TraceSettings,
    UnloadOptions,
};

use crate::ClientError;

/// A boxed future: one allocation a call is nothing beside a round trip.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A boxed stream.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// The result of a call.
pub type Result<T> = std::result::Result<T, ClientError>;

/// A server of the Open Inference Protocol, whatever transport it is reached by.
///
/// The trait is object safe, with boxed futures: which transport is spoken is most often a matter of a URL that is read
/// when the program runs. Dropping a future ends its call; the server sees that the client is gone and may stop its work.
///
/// ```no_run
/// use oip_client::InferenceClient;
/// use oip_types::{InferRequest, ModelRef};
/// use tensor_core::{Shape, Tensor};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// for url in ["http://localhost:8080", "grpc://localhost:9000"] {
///     let client: Box<dyn InferenceClient> = oip_client::builder(url).build()?;
///     let pixels = Tensor::from_vec(Shape::new(&[1, 64])?, vec![0.0f32; 64])?;
///     let request = InferRequest::new(ModelRef::new("digits", None)?).with_input("X", pixels);
///     let response = client.infer(&request).await?;
///     println!("{:?}", response.output("label"));
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Every call fails with a [`ClientError`] that says which server, and what was expected and found. Those that the server
/// refuses have the kind [`Refused`](crate::ErrorKind::Refused), with a [code](ClientError::code) in the protocol's terms.
pub trait InferenceClient: fmt::Debug + Send + Sync {
    /// Returns a client that sends these headers too, with every call, over the same connections: for headers
    /// that differ from request to request.
    ///
    /// ```
    /// let client = oip_client::builder("http://localhost:8080").build()?;
    /// let traced = client.with_headers(&[("x-request-id".to_owned(), "7".to_owned())])?;
    /// # Ok::<(), oip_client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage) when a header is malformed, or one of those that the client sets
    /// itself.
    fn with_headers(&self, headers: &[(String, String)]) -> Result<Box<dyn InferenceClient>>;

    /// Returns whether the server answers at all.
    fn server_live(&self) -> BoxFuture<'_, Result<bool>>;

    /// Returns whether the server wants requests.
    fn server_ready(&self) -> BoxFuture<'_, Result<bool>>;

    /// What the server says about itself. What it leaves out is empty.
    fn server_metadata(&self) -> BoxFuture<'_, Result<ServerMetadata>>;

    /// Returns whether a model would take a request now. A model that does not exist is an error with most
    /// servers; with some it is only not ready.
    fn model_ready<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<bool>>;

    /// What the server says about a model. What it leaves out is empty.
    fn model_metadata<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelMetadata>>;

    /// Runs a model. Tensors of the request are not copied on their way to the transport in raw form; those of the answer
    /// are slices of it.
    fn infer<'a>(&'a self, request: &'a InferRequest) -> BoxFuture<'a, Result<InferResponse>>;

    /// Runs a model again and again over one stream (`ModelStreamInfer`): answers come as they are ready, which need not be
    /// one for each request. A request that fails gives an error of its own, after which the stream goes on; when the
    /// stream breaks, an error is its last item. It is never tried again. Over HTTP there are no streams:
    /// [`Usage`](crate::ErrorKind::Usage).
    fn infer_stream(
        &self,
        requests: BoxStream<InferRequest>,
    ) -> BoxFuture<'_, Result<BoxStream<Result<InferResponse>>>>;

    /// Returns the models of the server's repository and how they are; with `is_ready` only those that are
    /// ready (model repository extension).
    fn repository_index(&self, is_ready: bool) -> BoxFuture<'_, Result<Vec<ModelIndexEntry>>>;

    /// Loads a model, or loads it again (model repository extension). Most servers answer when it is ready or has failed to
    /// be, which may take long: see [`Builder::request_timeout`](crate::Builder::request_timeout).
    fn load_model<'a>(&'a self, name: &'a str, options: &'a LoadOptions) -> BoxFuture<'a, Result<()>>;

    /// Unloads a model (model repository extension). Triton answers before the model has finished what it has.
    fn unload_model<'a>(&'a self, name: &'a str, options: UnloadOptions) -> BoxFuture<'a, Result<()>>;

    /// How a model is configured (model configuration extension).
    fn model_config<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelConfig>>;

    /// What happened since models were loaded: of one model, of one of its versions, or of all (statistics extension).
    fn statistics<'a>(&'a self, model: Option<ModelRef<'a>>) -> BoxFuture<'a, Result<Vec<ModelStatistics>>>;

    /// Changes log settings and gives all of them as they are then; no changes ask only (logging extension).
    fn log_settings<'a>(&'a self, changes: &'a LogSettings) -> BoxFuture<'a, Result<LogSettings>>;

    /// Returns the region of this name, or all that are registered (system shared memory extension).
    fn shared_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<SharedMemoryRegion>>>;

    /// Makes a region of system shared memory known to the server (system shared memory extension). Requests may then name parts
    /// of it as places of tensors ([`InferRequest::with_shared_input`], [`SharedMemorySlice::to_parameters`]); the client
    /// itself neither reads nor writes it.
    ///
    /// [`SharedMemorySlice::to_parameters`]: oip_types::SharedMemorySlice::to_parameters
    fn register_shared_memory<'a>(&'a self, region: &'a SharedMemoryRegion) -> BoxFuture<'a, Result<()>>;

    /// Makes the server forget the region of this name, or all regions (system shared memory extension).
    fn unregister_shared_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>>;

    /// Changes settings of traces, of a model or of the server, and gives all of them as they are then; no changes ask only (trace
    /// extension).
    fn trace_settings<'a>(
        &'a self,
        model: Option<&'a str>,
        changes: &'a TraceSettings,
    ) -> BoxFuture<'a, Result<TraceSettings>>;

    /// Returns the region of graphics cards' memory of this name, or all that are registered (CUDA shared
    /// memory extension).
    fn cuda_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<CudaMemoryRegion>>>;

    /// Makes a region of a graphics card's memory known to the server, by the handle that its driver gives (CUDA shared memory
    /// extension).
    fn register_cuda_memory<'a>(
        &'a self,
        region: &'a CudaMemoryRegion,
        handle: &'a Bytes,
    ) -> BoxFuture<'a, Result<()>>;

    /// Makes the server forget the region of this name, or all regions (CUDA shared memory extension).
    fn unregister_cuda_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>>;
}
