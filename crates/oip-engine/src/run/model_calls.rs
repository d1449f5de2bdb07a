//! Lets a model call other models of its engine during a request.

use std::{
    cell::OnceCell,
    fmt,
    sync::{Arc, Weak},
};

use oip_model::{BoxFuture, CancelToken, ModelCall, OtherModels, Responses};
use oip_resources::Lease;
use oip_service::RequestContext;
use oip_types::{ErrorCode, InferRequest, Memory, ParameterValue, ServiceError};

/// Interface through which the threads of a model call other models. The registry implements it.
pub(crate) trait Callees: Send + Sync {
    /// Answers a model's request to another model, with one response or with a stream of responses.
    fn answer_call(
        self: Arc<Self>,
        request: InferRequest,
        cx: RequestContext,
        takes_several: bool,
    ) -> BoxFuture<'static, Result<Responses, ServiceError>>;
}

/// A weak reference to the engine's models; empty after the engine is dropped.
#[derive(Clone, Default)]
pub(crate) struct Others(Option<Weak<dyn Callees>>);

impl Others {
    pub(crate) fn of<C: Callees + 'static>(callees: &Arc<C>) -> Self {
        let callees: Weak<C> = Arc::downgrade(callees);
        Self(Some(callees))
    }

    /// Returns the callable models for one run. Their calls end when `cancel` is cancelled.
    pub(crate) fn for_run<'r>(
        &'r self,
        caller: &'r str,
        cancel: &'r CancelToken,
        run: &'r Lease,
    ) -> CallableModels<'r> {
        CallableModels {
            others: self,
            caller,
            cancel,
            run,
            lease: OnceCell::new(),
        }
    }
}

impl fmt::Debug for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Others").finish_non_exhaustive()
    }
}

/// The models that a model can call during one run.
pub(crate) struct CallableModels<'r> {
    others: &'r Others,
    caller: &'r str,
    cancel: &'r CancelToken,
    /// Lease of the run.
    run: &'r Lease,
    /// Lease shared by all calls of the run.
    lease: OnceCell<Lease>,
}

impl CallableModels<'_> {
    /// Returns the lease that all calls of the run share. It is a separate one, so that the work of the called
    /// models counts as work of this run.
    fn lease(&self) -> &Lease {
        self.lease.get_or_init(|| self.run.for_shared_work())
    }
}

impl OtherModels for CallableModels<'_> {
    fn memory(&self) -> &dyn Memory {
        self.lease()
    }

    fn ask(&self, call: ModelCall) -> BoxFuture<'static, Result<Responses, ServiceError>> {
        let Some(callees) = self.others.0.as_ref().and_then(Weak::upgrade) else {
            let gone = ServiceError::new(ErrorCode::Unavailable, "the server is shutting down");
            return Box::pin(async { Err(gone) });
        };
        let cx = RequestContext::for_call(self.lease().clone(), self.cancel, call.timeout, self.caller);
        let priority = call.request.parameters.get("priority");
        let priority = priority.and_then(ParameterValue::as_u64).unwrap_or(0);
        callees.answer_call(call.request, cx.with_priority(priority), call.takes_several)
    }
}
