//! The interface common to all transports.

use std::{fmt, pin::Pin};

use bytes::Bytes;
use futures_core::Stream;
use oip_types::{
    CudaMemoryRegion, InferRequest, InferResponse, LoadOptions, LogSettings, ModelConfig, ModelIndexEntry,
    ModelMetadata, ModelRef, ModelStatistics, ServerMetadata, SharedMemoryRegion, TraceSettings,
    UnloadOptions,
};

use crate::ClientError;

/// A boxed future. One allocation per call is negligible compared with a round trip.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A boxed stream, of the requests or the responses of a bidirectional call.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// The result of a call.
pub type Result<T> = std::result::Result<T, ClientError>;

/// A client of an Open Inference Protocol server, over any transport.
///
/// The trait is object safe, with boxed futures, because the transport usually depends on a URL known only at
/// run time. Dropping a future cancels its call; the server notices the disconnect and may stop working.
///
/// ```no_run
/// use oip_client::{InferRequest, InferenceClient, ModelRef, Shape, Tensor};
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
/// Every call fails with a [`ClientError`] that names the server, the expected value and the value found.
/// Errors returned by the server have the kind [`Refused`](crate::ErrorKind::Refused) and a
/// [code](ClientError::code) of the protocol.
pub trait InferenceClient: fmt::Debug + Send + Sync {
    /// Returns a client that sends additional headers with every call over the same connections, for headers
    /// that differ between requests.
    ///
    /// ```
    /// let client = oip_client::builder("http://localhost:8080").build()?;
    /// let traced = client.with_headers(&[("x-request-id".to_owned(), "7".to_owned())])?;
    /// # Ok::<(), oip_client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage) when a header is malformed or is one that the client sets itself.
    fn with_headers(&self, headers: &[(String, String)]) -> Result<Box<dyn InferenceClient>>;

    /// Returns whether the server responds.
    fn server_live(&self) -> BoxFuture<'_, Result<bool>>;

    /// Returns whether the server is ready for requests.
    fn server_ready(&self) -> BoxFuture<'_, Result<bool>>;

    /// Returns the server's metadata. Missing fields are empty.
    fn server_metadata(&self) -> BoxFuture<'_, Result<ServerMetadata>>;

    /// Returns whether a model is ready. For an unknown model most servers return an error, and some return
    /// `false`.
    fn model_ready<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<bool>>;

    /// Returns a model's metadata. Missing fields are empty.
    fn model_metadata<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelMetadata>>;

    /// Runs a model. In raw form, request tensors are passed to the transport without copying, and response
    /// tensors are slices of the response.
    fn infer<'a>(&'a self, request: &'a InferRequest) -> BoxFuture<'a, Result<InferResponse>>;

    /// Runs a model repeatedly over one stream (`ModelStreamInfer`). Responses arrive when they are ready,
    /// not necessarily one per request. A failed request yields an error item and the stream continues; if
    /// the stream breaks, the last item is an error. Streams are never retried. HTTP has no streams, so this
    /// call fails with [`Usage`](crate::ErrorKind::Usage).
    fn infer_stream(
        &self,
        requests: BoxStream<InferRequest>,
    ) -> BoxFuture<'_, Result<BoxStream<Result<InferResponse>>>>;

    /// Lists the models of the server's repository with their states; with `is_ready` only ready ones (model
    /// repository extension).
    fn repository_index(&self, is_ready: bool) -> BoxFuture<'_, Result<Vec<ModelIndexEntry>>>;

    /// Loads or reloads a model (model repository extension). Most servers respond only when the model is
    /// ready or has failed to load, which can take a long time: see
    /// [`Builder::request_timeout`](crate::Builder::request_timeout).
    fn load_model<'a>(&'a self, name: &'a str, options: &'a LoadOptions) -> BoxFuture<'a, Result<()>>;

    /// Unloads a model (model repository extension). Triton responds before the model has finished its
    /// requests.
    fn unload_model<'a>(&'a self, name: &'a str, options: UnloadOptions) -> BoxFuture<'a, Result<()>>;

    /// Returns a model's configuration (model configuration extension).
    fn model_config<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelConfig>>;

    /// Returns the statistics of one model, one of its versions, or all models since they were loaded
    /// (statistics extension).
    fn statistics<'a>(&'a self, model: Option<ModelRef<'a>>) -> BoxFuture<'a, Result<Vec<ModelStatistics>>>;

    /// Changes log settings, and returns the values of all log settings. `changes` may be empty (logging
    /// extension).
    fn log_settings<'a>(&'a self, changes: &'a LogSettings) -> BoxFuture<'a, Result<LogSettings>>;

    /// Returns the registered region `name`, or all regions (system shared memory extension).
    fn shared_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<SharedMemoryRegion>>>;

    /// Registers a region of system shared memory (system shared memory extension). Requests can then name
    /// slices of the region as locations of tensors ([`InferRequest::with_shared_input`],
    /// [`SharedMemorySlice::to_parameters`]); the client itself neither reads nor writes the region.
    ///
    /// [`SharedMemorySlice::to_parameters`]: oip_types::SharedMemorySlice::to_parameters
    fn register_shared_memory<'a>(&'a self, region: &'a SharedMemoryRegion) -> BoxFuture<'a, Result<()>>;

    /// Unregisters the region `name`, or all regions (system shared memory extension).
    fn unregister_shared_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>>;

    /// Changes trace settings of a model or the server, and returns the values of all trace settings.
    /// `changes` may be empty (trace extension).
    fn trace_settings<'a>(
        &'a self,
        model: Option<&'a str>,
        changes: &'a TraceSettings,
    ) -> BoxFuture<'a, Result<TraceSettings>>;

    /// Returns the registered region `name` of GPU memory, or all regions (CUDA shared memory extension).
    fn cuda_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<CudaMemoryRegion>>>;

    /// Registers a region of GPU memory by its CUDA IPC handle (CUDA shared memory extension).
    fn register_cuda_memory<'a>(
        &'a self,
        region: &'a CudaMemoryRegion,
        handle: &'a Bytes,
    ) -> BoxFuture<'a, Result<()>>;

    /// Unregisters the region `name`, or all regions (CUDA shared memory extension).
    fn unregister_cuda_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>>;
}
