use std::{fmt, pin::Pin};

use futures_core::Stream;
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata};

use crate::ClientError;

/// A boxed future: one allocation a call is nothing beside a round trip.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A boxed stream.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// What a call comes to.
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
    /// Whether the server answers at all.
    fn server_live(&self) -> BoxFuture<'_, Result<bool>>;

    /// Whether the server wants requests.
    fn server_ready(&self) -> BoxFuture<'_, Result<bool>>;

    /// What the server says about itself. What it leaves out is empty.
    fn server_metadata(&self) -> BoxFuture<'_, Result<ServerMetadata>>;

    /// Whether a model would take a request now. A model that does not exist is an error with most servers; with some it
    /// is only not ready.
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
}
