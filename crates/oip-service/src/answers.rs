//! Several answers to one request: where a model puts them, and where a transport takes them from.

use std::{
    fmt,
    future::poll_fn,
    task::{Context, Poll},
};

use oip_types::{InferOutput, InferResponse, ServiceError};

/// Takes a model's answers to one request; see [`Model::infer_several`](crate::Model::infer_several).
///
/// ```
/// use oip_service::{AnswerSink, CancelToken, Model, ModelDefaults};
/// use oip_types::{InferOutput, InferRequest, ModelMetadata, ServiceError};
/// use tensor_core::Tensor;
///
/// /// Counts down from its input, in as many answers.
/// struct Countdown(ModelMetadata);
///
/// impl Model for Countdown {
///     fn metadata(&self) -> &ModelMetadata {
///         &self.0
///     }
///
///     fn infer(&self, _: InferRequest, _: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
///         Err(ServiceError::internal("it gives several answers"))
///     }
///
///     fn infer_several(
///         &self,
///         mut request: InferRequest,
///         _: &CancelToken,
///         answers: &mut dyn AnswerSink,
///     ) -> Result<(), ServiceError> {
///         let from = request.take_input("from")?;
///         let from = from.as_fixed().and_then(|from| from.to_vec::<u8>().ok()?.first().copied());
///         let mut left = (0..from.unwrap_or(0)).rev();
///         left.try_for_each(|left| answers.send(vec![InferOutput::new("left", Tensor::scalar(left))]))
///     }
///
///     fn defaults(&self) -> ModelDefaults {
///         ModelDefaults::default().with(|defaults| defaults.decoupled = true)
///     }
/// }
/// ```
pub trait AnswerSink {
    /// Gives one answer to the client. Waits while the client is behind by a few answers.
    ///
    /// # Errors
    /// The client is gone, its time is over, there is no memory for the answer, or it does not fit the model's metadata. A
    /// model should then stop and return the error: no later answer will be taken.
    fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError>;

    /// Gives the last answer. For models that know which it is: clients then see its end with it.
    ///
    /// # Errors
    /// As [`AnswerSink::send`].
    fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError>;

    /// Says that the model needs nothing but this thread for the rest of the answers: another thread may call it for the next request
    /// meanwhile, as if this call had returned. The caller of the model may do so, up to some number of requests, or ignore it.
    fn free_instance(&mut self) {}
}

/// A service's answer to a request.
#[derive(Debug)]
pub enum Answers {
    /// The one answer of a model that gives one to each request.
    One(InferResponse),
    /// Those of a model that gives any number, none included.
    Several(AnswerStream),
}

/// One of several answers.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamedAnswer {
    /// The answer.
    pub response: InferResponse,
    /// Whether the model said that no other comes. A stream can also end after an answer that was not marked.
    pub is_last: bool,
}

/// Several answers to one request, taken one by one. Nothing comes after an error. Dropping it ends the model's work for the
/// request.
///
/// ```
/// use oip_service::AnswerStream;
/// use std::task::Poll;
///
/// let mut empty = AnswerStream::new(|_| Poll::Ready(None));
/// assert!(futures_executor::block_on(empty.next()).is_none());
/// ```
pub struct AnswerStream(Box<Source>);

type Source = dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<StreamedAnswer, ServiceError>>> + Send;

impl AnswerStream {
    /// A stream of what a function gives, which is called as
    /// [`Iterator::next`] and as [`Future::poll`] are: until it has given `None` or an error, and then no more.
    pub fn new(
        source: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<StreamedAnswer, ServiceError>>>
        + Send
        + 'static,
    ) -> Self {
        Self(Box::new(source))
    }

    /// The next answer, `None` after the last one, or that it is not there yet.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<StreamedAnswer, ServiceError>>> {
        (self.0)(cx)
    }

    /// Waits for the next answer; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<StreamedAnswer, ServiceError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl fmt::Debug for AnswerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerStream").finish_non_exhaustive()
    }
}
