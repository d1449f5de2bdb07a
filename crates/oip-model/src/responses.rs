//! Several responses to one request: the sink that a model writes to and the stream that a transport reads
//! from.

use std::{
    fmt,
    future::poll_fn,
    task::{Context, Poll},
};

use oip_types::{InferOutput, InferResponse, ServiceError};

/// The sink for a model's responses to one request; see [`Call::responses`](crate::Call::responses).
///
/// ```
/// use oip_model::{Call, Capabilities, Model, Outcome};
/// use oip_types::{InferOutput, ModelMetadata, ServiceError};
/// use tensor_core::Tensor;
///
/// /// Counts down from its input, in as many responses.
/// struct Countdown(ModelMetadata);
///
/// impl Model for Countdown {
///     fn metadata(&self) -> &ModelMetadata {
///         &self.0
///     }
///
///     fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
///         let from = call.request.take::<u8>("from")?[0];
///         let responses = call.sink()?;
///         for left in (0..from).rev() {
///             responses.send(vec![InferOutput::new("left", Tensor::scalar(left))])?;
///         }
///         Ok(Outcome::Streamed)
///     }
///
///     fn capabilities(&self) -> Capabilities {
///         Capabilities::default().with(|capabilities| capabilities.decoupled = true)
///     }
/// }
/// ```
pub trait ResponseSink {
    /// Sends one response to the client. Blocks while the client is several responses behind.
    ///
    /// # Errors
    /// When the client has disconnected, its deadline has passed, there is no memory for the response, or the
    /// response does not fit the model's metadata. The model should then stop and return the error; later
    /// responses are refused.
    fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError>;

    /// Sends the last response, for models that can tell which response is the last. The client then sees the
    /// end of the stream together with this response.
    ///
    /// # Errors
    /// See [`ResponseSink::send`].
    fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError>;

    /// Declares that producing the remaining responses blocks only this thread. The caller may then run the
    /// model for the next request on another thread, as if this run had returned. The caller may do so for a
    /// limited number of requests, or not at all.
    fn free_instance(&mut self) {}
}

/// A service's responses to a request.
#[derive(Debug)]
pub enum Responses {
    /// The response of a model that returns one for each request.
    One(InferResponse),
    /// The responses of a decoupled model: any number, including none.
    Several(ResponseStream),
}

/// One of several responses to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamedResponse {
    /// The response with its outputs.
    pub response: InferResponse,
    /// Whether the model marked this response as the last one. A stream can also end after a response that
    /// was not marked.
    pub is_last: bool,
}

/// Several responses to one request, read one at a time. The stream ends after an error. Dropping the stream
/// cancels the model's work for the request.
///
/// ```
/// use oip_model::ResponseStream;
/// use std::task::Poll;
///
/// let mut empty = ResponseStream::new(|_| Poll::Ready(None));
/// assert!(futures_executor::block_on(empty.next()).is_none());
/// ```
pub struct ResponseStream(Box<Source>);

type Source = dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<StreamedResponse, ServiceError>>> + Send;

impl ResponseStream {
    /// Creates a stream from a poll function. `source` is polled until it returns `None` or an error, and is
    /// never polled again after that.
    pub fn new(
        source: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<StreamedResponse, ServiceError>>>
        + Send
        + 'static,
    ) -> Self {
        Self(Box::new(source))
    }

    /// Polls for the next response; `None` after the last one.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<StreamedResponse, ServiceError>>> {
        (self.0)(cx)
    }

    /// Waits for the next response; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<StreamedResponse, ServiceError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl fmt::Debug for ResponseStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseStream").finish_non_exhaustive()
    }
}
