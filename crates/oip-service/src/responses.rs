//! Several responses to one request: where a model puts them, and where a transport takes them from.

use std::{
    fmt,
    future::poll_fn,
    task::{Context, Poll},
};

use oip_types::{InferOutput, InferResponse, ServiceError};

/// Takes a model's responses to one request; see [`Call::responses`](crate::Call::responses).
///
/// ```
/// use oip_service::{Call, Capabilities, Model, Outcome};
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
    /// Sends one response to the client. Waits while the client is behind by a few responses.
    ///
    /// # Errors
    /// The client is gone, its time is over, there is no memory for the response, or it does not fit the model's metadata. A
    /// model should then stop and return the error: no later response will be taken.
    fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError>;

    /// Sends the last response. For models that know which it is: clients then see the end with it.
    ///
    /// # Errors
    /// As [`ResponseSink::send`].
    fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError>;

    /// Says that the model needs nothing but this thread for the rest of the responses: another thread may call it for the next request
    /// meanwhile, as if this call had returned. The caller of the model may do so, up to some number of requests, or ignore it.
    fn free_instance(&mut self) {}
}

/// A service's responses to a request.
#[derive(Debug)]
pub enum Responses {
    /// The one response of a model that gives one to each request.
    One(InferResponse),
    /// Those of a model that gives any number, none included.
    Several(ResponseStream),
}

/// One of several responses.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamedResponse {
    /// The response.
    pub response: InferResponse,
    /// Whether the model said that no other comes. A stream can also end after a response that was not marked.
    pub is_last: bool,
}

/// Several responses to one request, taken one by one. Nothing comes after an error. Dropping it ends the model's work for the
/// request.
///
/// ```
/// use oip_service::ResponseStream;
/// use std::task::Poll;
///
/// let mut empty = ResponseStream::new(|_| Poll::Ready(None));
/// assert!(futures_executor::block_on(empty.next()).is_none());
/// ```
pub struct ResponseStream(Box<Source>);

type Source = dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<StreamedResponse, ServiceError>>> + Send;

impl ResponseStream {
    /// A stream of what a function gives, which is called as
    /// [`Iterator::next`] and as [`Future::poll`] are: until it has given `None` or an error, and then no more.
    pub fn new(
        source: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<StreamedResponse, ServiceError>>>
        + Send
        + 'static,
    ) -> Self {
        Self(Box::new(source))
    }

    /// The next response, `None` after the last one, or that it is not there yet.
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
