//! Lets a model ask the server's other models while it answers a request.

use std::{sync::LazyLock, time::Duration};

use oip_types::{ErrorCode, InferRequest, ServiceError};

use crate::{BoxFuture, Lease, Responses};

/// A request that a model makes of another one.
///
/// ```
/// use oip_service::ModelCall;
/// use oip_types::{InferRequest, ModelRef};
/// use std::time::Duration;
///
/// let request = InferRequest::new(ModelRef::new("tokens", None)?);
/// let call = ModelCall::new(request).with_timeout(Some(Duration::from_secs(1)));
/// assert!(!call.takes_several);
/// # Ok::<(), oip_service::oip_types::ServiceError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelCall {
    /// The request, and the model that is asked.
    pub request: InferRequest,
    /// How long it may take, if that is less than what is left to the request that it is made for.
    pub timeout: Option<Duration>,
    /// Whether any number of answers is taken; a model that gives any number refuses calls that take one.
    pub takes_several: bool,
}

impl ModelCall {
    /// A call that takes one answer, in the time of the request that it is made for.
    #[must_use]
    pub fn new(request: InferRequest) -> Self {
        Self {
            request,
            timeout: None,
            takes_several: false,
        }
    }

    /// The same with a time of its own.
    #[must_use]
    pub fn with_timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// The same with or without several answers.
    #[must_use]
    pub fn with_several(self, takes_several: bool) -> Self {
        Self {
            takes_several,
            ..self
        }
    }
}

/// The other models of the server, for a model that works on a request; see [`Call::others`](crate::Call::others).
///
/// A call is made on behalf of that request: it has its deadline, ends when it is cancelled, and is charged to the same budget. It
/// is the server's own: what clients may ask for is not looked at.
pub trait OtherModels {
    /// The budget that memory for calls is charged to, before it is taken.
    fn lease(&self) -> &Lease;

    /// Asks another model. Dropping the future, or the answers that it gives, ends the work for it.
    ///
    /// The future says no by itself when the model is not there, refuses the request, or waits for the model that asks.
    fn ask(&self, call: ModelCall) -> BoxFuture<'static, Result<Responses, ServiceError>>;
}

/// No other models: for a model that runs outside of a server, or while it is loaded.
///
/// ```
/// use oip_service::{ModelCall, NoOtherModels, OtherModels};
/// use oip_types::{InferRequest, ModelRef};
///
/// let call = ModelCall::new(InferRequest::new(ModelRef::new("tokens", None)?));
/// assert!(futures_executor::block_on(NoOtherModels::default().ask(call)).is_err());
/// # Ok::<(), oip_service::oip_types::ServiceError>(())
/// ```
#[derive(Debug)]
pub struct NoOtherModels(Lease);

impl NoOtherModels {
    /// One for all calls without other models.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<NoOtherModels> = LazyLock::new(NoOtherModels::default);
        &SHARED
    }
}

impl Default for NoOtherModels {
    fn default() -> Self {
        Self(Lease::unlimited())
    }
}

impl OtherModels for NoOtherModels {
    fn lease(&self) -> &Lease {
        &self.0
    }

    fn ask(&self, _: ModelCall) -> BoxFuture<'static, Result<Responses, ServiceError>> {
        Box::pin(async {
            let message = "other models can be asked only while a client's request is answered";
            Err(ServiceError::new(ErrorCode::Unavailable, message))
        })
    }
}
