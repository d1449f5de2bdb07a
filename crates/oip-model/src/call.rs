//! One call of a model: its inputs and its outcome.

use std::{fmt, time::Duration};

use oip_types::{InferOutput, InferRequest, ServiceError, TensorValue};

use crate::{CancelToken, NoOtherModels, OtherModels, ResponseSink};

/// The argument of [`Model::run`](crate::Model::run): the request, and everything that the run may use.
///
/// Callers create a call with [`Call::new`] and add optional fields. They set a field only for models whose
/// [`Capabilities`](crate::Capabilities) support it.
///
/// ```
/// use oip_model::{Call, CancelToken};
/// use oip_types::{InferRequest, ModelRef};
/// use std::time::Duration;
///
/// let cancel = CancelToken::new(None);
/// let request = InferRequest::new(ModelRef::new("digits", None)?);
/// let call = Call::new(request, &cancel).with_patience(Some(Duration::from_micros(400)));
/// assert!(call.responses.is_none() && call.parts.is_empty());
/// # Ok::<(), oip_model::oip_types::ServiceError>(())
/// ```
#[non_exhaustive]
pub struct Call<'c> {
    /// The request, which fits the model's metadata.
    pub request: InferRequest,
    /// Token that is cancelled when the response is no longer wanted. Long-running models should check it
    /// between steps.
    pub cancel: &'c CancelToken,
    /// The server's other models.
    pub others: &'c dyn OtherModels,
    /// The requests that were batched together into this request, in the order of their rows; empty for a
    /// single request. A model that handles the parts separately can fail some of them with
    /// [`Outputs::failed`].
    pub parts: &'c [RequestPart],
    /// The sink for any number of responses, for models whose configuration has the transaction policy
    /// `decoupled`. `None` if the caller wants one response, which the run returns.
    pub responses: Option<&'c mut dyn ResponseSink>,
    /// How long this thread may wait for a run that takes place [elsewhere](crate::Capabilities::elsewhere).
    /// After that time, the run returns [`Outcome::Unfinished`], and another thread finishes it with
    /// [`RestOfRun::finish`]: that thread waits for the result, calls other models, reads large outputs, or
    /// finds out why a process exited. With `None`, the run blocks until it is finished.
    pub patience: Option<Duration>,
}

impl<'c> Call<'c> {
    /// Creates a call for one response, without access to other models.
    #[must_use]
    pub fn new(request: InferRequest, cancel: &'c CancelToken) -> Self {
        Self {
            request,
            cancel,
            others: &NoOtherModels,
            parts: &[],
            responses: None,
            patience: None,
        }
    }

    /// Returns the call with other models that the model may call.
    #[must_use]
    pub fn with_others(self, others: &'c dyn OtherModels) -> Self {
        Self { others, ..self }
    }

    /// Returns the call with `parts`, the requests that were combined into the call's request.
    #[must_use]
    pub fn with_parts(self, parts: &'c [RequestPart]) -> Self {
        Self { parts, ..self }
    }

    /// Returns the call with a sink for any number of responses, or without one.
    #[must_use]
    pub fn with_responses<'s>(self, responses: Option<&'s mut dyn ResponseSink>) -> Call<'s>
    where
        'c: 's,
    {
        let Self {
            request,
            cancel,
            others,
            parts,
            patience,
            responses: _,
        } = self;
        Call {
            request,
            cancel,
            others,
            parts,
            responses,
            patience,
        }
    }

    /// Returns the call with a limit on this thread's waiting time, or without one.
    #[must_use]
    pub fn with_patience(self, patience: Option<Duration>) -> Self {
        Self { patience, ..self }
    }

    /// Returns the sink, for a model that always needs one.
    ///
    /// # Errors
    /// [`Internal`](oip_types::ErrorCode::Internal) when the caller accepts only one response.
    pub fn sink(&mut self) -> Result<&mut dyn ResponseSink, ServiceError> {
        match &mut self.responses {
            Some(responses) => Ok(&mut **responses),
            None => Err(ServiceError::internal(
                "it returns any number of responses, and its caller expects one",
            )),
        }
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("request", &self.request)
            .field("parts", &self.parts)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// One of several requests that were batched together along their first dimension.
///
/// ```
/// use oip_model::RequestPart;
///
/// let part = RequestPart { id: Some("7".to_owned()), rows: 2, outputs: vec![] };
/// assert_eq!(part.rows, 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPart {
    /// The request id from the client.
    pub id: Option<String>,
    /// Number of rows that this request has in the batched inputs.
    pub rows: u64,
    /// Names of the requested outputs; empty if the client wants all outputs.
    pub outputs: Vec<String>,
}

/// The result of a successful run.
#[derive(Debug)]
pub enum Outcome {
    /// One response, or one for each of the [`Call::parts`].
    Outputs(Outputs),
    /// All responses were sent through [`Call::responses`].
    Streamed,
    /// The run exceeded [`Call::patience`] and continues elsewhere. [`RestOfRun::finish`] waits for its end.
    Unfinished(RestOfRun),
}

impl Outcome {
    /// Returns a response with one output.
    pub fn output(name: impl Into<String>, value: impl Into<TensorValue>) -> Self {
        vec![InferOutput::new(name, value)].into()
    }

    /// Returns the outputs of one response to a single request.
    ///
    /// # Errors
    /// [`Internal`](oip_types::ErrorCode::Internal) for any other outcome; otherwise the first error of a
    /// failed part.
    pub fn into_outputs(self) -> Result<Vec<InferOutput>, ServiceError> {
        match self {
            Self::Outputs(Outputs { outputs, failed }) => match failed.into_iter().next() {
                None => Ok(outputs),
                Some((_, error)) => Err(error),
            },
            Self::Streamed => Err(ServiceError::internal("it returned no response, expected one")),
            Self::Unfinished(_) => Err(unasked_rest()),
        }
    }

    /// Sends the outcome of a run that had a sink. If the model returned its only response instead of sending
    /// it, sends the returned response.
    ///
    /// # Errors
    /// See [`ResponseSink::send_last`]; [`Internal`](oip_types::ErrorCode::Internal) for an unfinished run.
    pub fn send_to(self, responses: &mut dyn ResponseSink) -> Result<(), ServiceError> {
        match self {
            Self::Streamed => Ok(()),
            outcome => responses.send_last(outcome.into_outputs()?),
        }
    }

    /// Applies `change` to the outputs, now or when the run is finished. For [`Outcome::Streamed`], the sink
    /// must change the outputs.
    ///
    /// ```
    /// use oip_model::Outcome;
    /// use tensor_core::Tensor;
    ///
    /// let outcome = Outcome::output("y", Tensor::scalar(1u8)).map(|mut outputs| {
    ///     outputs.retain(|output| output.name != "y");
    ///     Ok(outputs)
    /// });
    /// assert!(outcome?.into_outputs()?.is_empty());
    /// # Ok::<(), oip_model::oip_types::ServiceError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of `change`.
    pub fn map(
        self,
        change: impl FnOnce(Vec<InferOutput>) -> Result<Vec<InferOutput>, ServiceError> + Send + 'static,
    ) -> Result<Self, ServiceError> {
        Ok(match self {
            Self::Outputs(Outputs { outputs, failed }) => Self::Outputs(Outputs {
                outputs: change(outputs)?,
                failed,
            }),
            Self::Streamed => Self::Streamed,
            Self::Unfinished(rest) => Self::Unfinished(RestOfRun::new(move |cancel, others| {
                change(rest.finish(cancel, others)?)
            })),
        })
    }
}

impl From<Vec<InferOutput>> for Outcome {
    fn from(outputs: Vec<InferOutput>) -> Self {
        Self::Outputs(Outputs::new(outputs))
    }
}

impl From<Outputs> for Outcome {
    fn from(outputs: Outputs) -> Self {
        Self::Outputs(outputs)
    }
}

fn unasked_rest() -> ServiceError {
    ServiceError::internal("it left a run unfinished that had no limit on its time")
}

/// The outputs of a run.
///
/// ```
/// use oip_model::Outputs;
/// use oip_types::ServiceError;
///
/// let mut outputs = Outputs::new(vec![]);
/// outputs.failed.push((1, ServiceError::invalid("the second request makes no sense")));
/// assert!(outputs.outputs.is_empty());
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Outputs {
    /// Outputs with the rows of all parts. The rows of failed parts may have any value. The list is empty if
    /// all parts failed.
    pub outputs: Vec<InferOutput>,
    /// The index in [`Call::parts`] of each failed part, and its error.
    pub failed: Vec<(usize, ServiceError)>,
}

impl Outputs {
    /// Creates outputs without failed parts.
    #[must_use]
    pub fn new(outputs: Vec<InferOutput>) -> Self {
        Self {
            outputs,
            failed: Vec::new(),
        }
    }
}

/// A function that waits for a run that exceeded [`Call::patience`], and returns its result. It blocks.
/// Dropping the value abandons the run.
pub struct RestOfRun(Box<Rest>);

type Rest = dyn FnOnce(&CancelToken, &dyn OtherModels) -> Result<Vec<InferOutput>, ServiceError> + Send;

impl RestOfRun {
    /// Creates the value from the function `rest`, which receives the run's cancellation token and the models
    /// that it may call.
    pub fn new(
        rest: impl FnOnce(&CancelToken, &dyn OtherModels) -> Result<Vec<InferOutput>, ServiceError>
        + Send
        + 'static,
    ) -> Self {
        Self(Box::new(rest))
    }

    /// Blocks until the run is finished.
    ///
    /// # Errors
    /// See [`Model::run`](crate::Model::run).
    pub fn finish(
        self,
        cancel: &CancelToken,
        others: &dyn OtherModels,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        (self.0)(cancel, others)
    }
}

impl fmt::Debug for RestOfRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestOfRun").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use oip_types::ErrorCode;
    use tensor_core::Tensor;

    use super::*;

    fn renamed(outputs: Vec<InferOutput>) -> Result<Vec<InferOutput>, ServiceError> {
        let rename = |output: InferOutput| InferOutput::new("z", output.value);
        Ok(outputs.into_iter().map(rename).collect())
    }

    /// Records responses, and for each whether it was marked as the last one.
    #[derive(Default)]
    struct RecordingSink(Vec<(String, bool)>);

    impl ResponseSink for RecordingSink {
        fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
            self.0.push((outputs[0].name.clone(), false));
            Ok(())
        }

        fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
            self.0.push((outputs[0].name.clone(), true));
            Ok(())
        }
    }

    #[test]
    fn a_wrapper_maps_outputs_of_every_outcome() {
        let now = Outcome::output("y", Tensor::scalar(1u8)).map(renamed).unwrap();
        assert_eq!(now.into_outputs().unwrap()[0].name, "z");
        let rest = RestOfRun::new(|_, _| Outcome::output("y", Tensor::scalar(1u8)).into_outputs());
        let Outcome::Unfinished(rest) = Outcome::Unfinished(rest).map(renamed).unwrap() else {
            panic!("it is not over");
        };
        let outputs = rest.finish(&CancelToken::new(None), &NoOtherModels);
        assert_eq!(outputs.unwrap()[0].name, "z");
        let mut given = Outputs::new(Vec::new());
        given.failed.push((0, ServiceError::invalid("no")));
        let Outcome::Outputs(given) = Outcome::from(given).map(renamed).unwrap() else {
            panic!("it is over");
        };
        assert_eq!(given.failed.len(), 1);
    }

    #[test]
    fn an_outcome_that_was_not_asked_for_is_an_error() {
        assert_eq!(
            Outcome::Streamed.into_outputs().unwrap_err().code(),
            ErrorCode::Internal
        );
        let rest = || Outcome::Unfinished(RestOfRun::new(|_, _| Ok(Vec::new())));
        assert_eq!(rest().into_outputs().unwrap_err().code(), ErrorCode::Internal);
        assert!(rest().send_to(&mut RecordingSink::default()).is_err());
        let mut failed = Outputs::new(Vec::new());
        failed.failed.push((0, ServiceError::invalid("no")));
        assert_eq!(Outcome::from(failed).into_outputs().unwrap_err().message(), "no");
        let cancel = CancelToken::new(None);
        let request = InferRequest::new(oip_types::ModelRef::new("m", None).unwrap());
        assert!(Call::new(request.clone(), &cancel).sink().is_err());
        let mut taken = RecordingSink::default();
        assert!(
            Call::new(request, &cancel)
                .with_responses(Some(&mut taken))
                .sink()
                .is_ok()
        );
    }

    #[test]
    fn one_response_is_the_last_of_a_stream() {
        let mut taken = RecordingSink::default();
        Outcome::output("y", Tensor::scalar(1u8))
            .send_to(&mut taken)
            .unwrap();
        Outcome::Streamed.send_to(&mut taken).unwrap();
        assert_eq!(taken.0, [("y".to_owned(), true)]);
    }
}
