//! Lets a model call the server's other models while it runs a request.

use std::{pin::Pin, time::Duration};

use oip_types::{ErrorCode, InferRequest, Memory, ServiceError, UnlimitedMemory};

use crate::Responses;

/// A boxed future. The allocation per request costs little compared to inference, and boxing keeps transports
/// free of generics.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request from one model to another.
///
/// ```
/// use oip_model::ModelCall;
/// use oip_types::{InferRequest, ModelRef};
/// use std::time::Duration;
///
/// let request = InferRequest::new(ModelRef::new("tokens", None)?);
/// let call = ModelCall::new(request).with_timeout(Some(Duration::from_secs(1)));
/// assert!(!call.takes_several);
/// # Ok::<(), oip_model::oip_types::ServiceError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelCall {
    /// The request, which names the model to call.
    pub request: InferRequest,
    /// Time limit for the call, if it is shorter than the time that remains for the calling request.
    pub timeout: Option<Duration>,
    /// Whether the caller accepts any number of responses. A decoupled model refuses calls that accept only
    /// one.
    pub takes_several: bool,
}

impl ModelCall {
    /// Creates a call that accepts one response, within the deadline of the calling request.
    #[must_use]
    pub fn new(request: InferRequest) -> Self {
        Self {
            request,
            timeout: None,
            takes_several: false,
        }
    }

    /// Returns the call with its own timeout.
    #[must_use]
    pub fn with_timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the call with `takes_several` set.
    #[must_use]
    pub fn with_several(self, takes_several: bool) -> Self {
        Self {
            takes_several,
            ..self
        }
    }
}

/// The server's other models, for a model that is running a request; see
/// [`Call::others`](crate::Call::others).
///
/// A call is made on behalf of the running request: the call has the request's deadline, ends when the
/// request is cancelled, and counts toward the same budget. Client permissions are not checked, because the
/// server makes the call.
pub trait OtherModels {
    /// Returns the memory of the running request. Inputs of calls are reserved there before they are allocated.
    fn memory(&self) -> &dyn Memory;

    /// Calls another model. Dropping the future or the responses cancels the work.
    ///
    /// The future fails if the called model does not exist, refuses the request, or is itself waiting for the
    /// calling model.
    fn ask(&self, call: ModelCall) -> BoxFuture<'static, Result<Responses, ServiceError>>;
}

/// Refuses all calls. Used for a model that is loading or runs outside a server.
///
/// ```
/// use oip_model::{ModelCall, NoOtherModels, OtherModels};
/// use oip_types::{InferRequest, ModelRef};
///
/// let call = ModelCall::new(InferRequest::new(ModelRef::new("tokens", None)?));
/// assert!(futures_executor::block_on(NoOtherModels.ask(call)).is_err());
/// # Ok::<(), oip_model::oip_types::ServiceError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoOtherModels;

impl OtherModels for NoOtherModels {
    fn memory(&self) -> &dyn Memory {
        &UnlimitedMemory
    }

    fn ask(&self, _: ModelCall) -> BoxFuture<'static, Result<Responses, ServiceError>> {
        Box::pin(async {
            let message = "other models can be called only while a client's request is answered";
            Err(ServiceError::new(ErrorCode::Unavailable, message))
        })
    }
}
