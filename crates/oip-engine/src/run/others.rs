//! Lets a model ask the other models of its engine while it answers a request.

use std::{
    cell::OnceCell,
    fmt,
    sync::{Arc, Weak},
};

use oip_service::{BoxFuture, CancelToken, Lease, ModelCall, OtherModels, RequestContext, Responses};
use oip_types::{ErrorCode, InferRequest, ParameterValue, ServiceError};

/// Models that answer requests: all that a model's threads know of the rest of the engine. The registry implements it.
pub(crate) trait Callees: Send + Sync {
    /// Answers a request that a model makes, once or, if that is wanted, any number of times.
    fn answer_call(
        self: Arc<Self>,
        request: InferRequest,
        cx: RequestContext,
        takes_several: bool,
    ) -> BoxFuture<'static, Result<Responses, ServiceError>>;
}

/// The models of the engine, as one of them holds them: not, once the engine is gone.
#[derive(Clone, Default)]
pub(crate) struct Others(Option<Weak<dyn Callees>>);

impl Others {
    pub(crate) fn of<C: Callees + 'static>(callees: &Arc<C>) -> Self {
        let callees: Weak<C> = Arc::downgrade(callees);
        Self(Some(callees))
    }

    /// The same for one run of a model, whose time is `cancel`'s.
    pub(crate) fn for_run<'r>(
        &'r self,
        caller: &'r str,
        cancel: &'r CancelToken,
        run: &'r Lease,
    ) -> Asking<'r> {
        Asking {
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

/// The other models during one run of a model.
pub(crate) struct Asking<'r> {
    others: &'r Others,
    caller: &'r str,
    cancel: &'r CancelToken,
    /// Of the run.
    run: &'r Lease,
    /// Of all its calls.
    lease: OnceCell<Lease>,
}

impl OtherModels for Asking<'_> {
    fn lease(&self) -> &Lease {
        // Of its own: what the models that it asks are busy with is part of its own run, and noted as that.
        self.lease.get_or_init(|| self.run.for_shared_work())
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
