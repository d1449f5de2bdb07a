//! The interface between transports and the service that answers their requests.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use oip_model::{BoxFuture, CancelToken, Responses};
use oip_resources::{Lease, TimeLimits};
use oip_types::{
    ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError,
};

use crate::{Classification, Logging, ModelConfiguration, ModelRepository, Statistics, SystemSharedMemory};

/// Runs inference requests, for all transports.
///
/// A service runs requests that fit its models. Transports do the checks: they call the service through
/// [`respond`](crate::respond) and [`respond_stream`](crate::respond_stream), which check each request
/// against [`InferenceService::model_metadata`], check and select the outputs, and put the request's id into
/// the response.
///
/// Extensions of the protocol are optional capabilities: methods that return `None` unless a service offers
/// them.
pub trait InferenceService: Send + Sync + 'static {
    /// Returns the server's metadata.
    fn server_metadata(&self) -> ServerMetadata;

    /// Returns whether the server accepts requests.
    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    /// Returns a model's metadata. Without a version, the service chooses one.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for models and versions that do not exist; [`ErrorCode::Unavailable`], with
    /// the reason, for those that exist but are not ready.
    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError>;

    /// Checks whether a model would accept a request now.
    ///
    /// # Errors
    /// See [`InferenceService::model_metadata`].
    fn model_ready(&self, model: ModelRef<'_>) -> Result<(), ServiceError> {
        self.model_metadata(model).map(drop)
    }

    /// Runs a model.
    ///
    /// The transport drops the future when the client has disconnected or the deadline has passed. The
    /// service then stops the work or does not start it.
    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>>;

    /// Runs a model that may send any number of responses. [`InferenceService::infer`] refuses such models.
    ///
    /// For models that send one response, this method does the same as [`InferenceService::infer`].
    fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        let answer = self.infer(request, cx);
        Box::pin(async { answer.await.map(Responses::One) })
    }

    /// Makes the service report that it is not ready. The service still accepts requests. A server calls this
    /// when it begins to drain.
    fn start_draining(&self) {}

    /// Stops the service, which receives no more requests, and blocks until its work has ended. Returns
    /// whether all work ended before `deadline`.
    fn stop(&self, _deadline: Instant) -> bool {
        true
    }

    /// Returns whether the service checks requests and outputs itself, and puts the request's id into the
    /// response. If so, the caller skips these steps. An engine returns true, because it selects the version
    /// that a request runs on, and must check requests before it batches them.
    fn checks_requests(&self) -> bool {
        false
    }

    /// Returns the model repository extension, if it is offered.
    fn repository(&self) -> Option<&dyn ModelRepository> {
        None
    }

    /// Returns the model configuration extension, if it is offered.
    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        None
    }

    /// Returns the statistics extension, if it is offered.
    fn statistics(&self) -> Option<&dyn Statistics> {
        None
    }

    /// Returns the classification extension, if it is offered.
    fn classification(&self) -> Option<&dyn Classification> {
        None
    }

    /// Returns the logging extension, if it is offered.
    fn logging(&self) -> Option<&dyn Logging> {
        None
    }

    /// Returns the system shared memory extension, if it is offered.
    fn shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        None
    }

    /// Returns whether the service schedules requests by their parameter `priority` (schedule policy
    /// extension). The extension's other parameter, `timeout`, is handled by every transport.
    fn has_schedule_policy(&self) -> bool {
        false
    }
}

/// Whether a server accepts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The service accepts requests.
    Ready,
    /// The service does not accept requests, with a human-readable reason.
    NotReady(String),
}

impl Readiness {
    /// Returns whether this is `Ready`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

/// The context of a request: its lease, cancellation token, priority and origin.
#[derive(Clone, Debug)]
pub struct RequestContext {
    received: Instant,
    lease: Lease,
    cancel: CancelToken,
    priority: u64,
    /// Number of the pipeline step; see [`Self::with_step`].
    step: u32,
    /// Model that made the request; see [`Self::for_call`].
    caller: Option<Arc<str>>,
}

impl RequestContext {
    /// Creates the context of a request that has just been received and has the given deadline. The request's
    /// memory is not limited.
    #[must_use]
    pub fn new(deadline: Option<Instant>) -> Self {
        let lease = Lease::unlimited();
        lease.set_deadline(deadline);
        Self::of(lease)
    }

    fn of(lease: Lease) -> Self {
        Self {
            received: Instant::now(),
            cancel: lease.cancel_token(),
            lease,
            priority: 0,
            step: 0,
            caller: None,
        }
    }

    /// Creates the context of a request that the model `caller` makes to another model. The request's memory
    /// is charged to `lease`; the request ends when `work`, the token of the caller's own request, is
    /// cancelled or expires, and takes at most `timeout`.
    #[must_use]
    pub fn for_call(
        lease: Lease,
        work: &CancelToken,
        timeout: Option<Duration>,
        caller: impl Into<Arc<str>>,
    ) -> Self {
        let received = Instant::now();
        let own = timeout.and_then(|timeout| received.checked_add(timeout));
        let deadline = [own, work.deadline()].into_iter().flatten().min();
        // A separate token, so that cancelling the call does not cancel the caller's own work.
        let cancel = CancelToken::all_of(std::slice::from_ref(work)).with_deadline(deadline);
        Self {
            received,
            lease,
            cancel,
            priority: 0,
            step: 0,
            caller: Some(caller.into()),
        }
    }

    /// Returns the model that made the request, if a model did.
    #[must_use]
    pub fn caller(&self) -> Option<&str> {
        self.caller.as_deref()
    }

    /// Returns the context for a step of a pipeline; `step` is its number in the request's `RequestNotes`.
    #[must_use]
    pub fn with_step(mut self, step: u32) -> Self {
        self.step = step;
        self
    }

    /// Returns the pipeline step that the context belongs to; 0 for the request itself, or if the request is
    /// not traced.
    #[must_use]
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Returns the context with a priority: 1 is the highest, 0 means the model's default.
    #[must_use]
    pub fn with_priority(mut self, priority: u64) -> Self {
        self.priority = priority;
        self
    }

    /// Creates the context of a request and sets the lease's deadline, which counts from the request's first
    /// byte.
    ///
    /// The client may set a shorter or longer timeout than the default, with the request parameter `timeout`
    /// (in microseconds, as in Triton) or through its transport. The shorter of these two timeouts applies,
    /// up to the limit. `priority` is also a request parameter.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when `timeout` or `priority` is invalid;
    /// [`ErrorCode::DeadlineExceeded`] when the transport's timeout is zero. A request whose deadline passed
    /// while it was being read causes no error here: the service refuses and counts such a request.
    pub fn for_request(
        request: &InferRequest,
        lease: &Lease,
        transport_timeout: Option<Duration>,
        limits: &TimeLimits,
    ) -> Result<Self, ServiceError> {
        let number = |name: &str, unit: &str| match request.parameters.get(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| {
                ServiceError::invalid(format!("parameter '{name}': expected {unit}, found {value}"))
            }),
        };
        let priority = number("priority", "a priority of 0 or more")?.unwrap_or(0);
        let parameter = number("timeout", "microseconds")?;
        // As in Triton, a `timeout` of 0 counts as absent.
        let parameter = parameter.filter(|micros| *micros > 0).map(Duration::from_micros);
        if transport_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(ServiceError::new(
                ErrorCode::DeadlineExceeded,
                "the deadline passed before the request was read",
            ));
        }
        let asked = [parameter, transport_timeout].into_iter().flatten().min();
        let timeout = asked.unwrap_or(limits.default).min(limits.max);
        lease.set_timeout(timeout);
        Ok(Self::of(lease.clone()).with_priority(priority))
    }

    /// Returns the time at which the transport finished reading the request.
    #[must_use]
    pub fn received(&self) -> Instant {
        self.received
    }

    /// Returns the request's lease: its memory and deadline.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns the priority: 1 is the highest, 0 means the model's default.
    #[must_use]
    pub fn priority(&self) -> u64 {
        self.priority
    }

    /// Returns the token that is cancelled when the response is no longer wanted.
    #[must_use]
    pub fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    /// Returns the time by which the response must be ready.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.cancel.deadline()
    }
}

#[cfg(test)]
mod tests {
    use oip_types::ParameterValue;

    use super::*;

    fn seconds(request: &InferRequest, transport: Option<u64>) -> Result<u64, ErrorCode> {
        let transport = transport.map(Duration::from_secs);
        let lease = Lease::unlimited();
        let context = RequestContext::for_request(request, &lease, transport, &TimeLimits::default());
        let deadline = context.map_err(|error| error.code())?.deadline().unwrap();
        Ok((deadline - Instant::now()).as_secs_f64().round() as u64)
    }

    #[test]
    fn a_call_ends_with_the_work_that_it_is_for_and_not_the_other_way_round() {
        let soon = Instant::now() + Duration::from_secs(5);
        let work = CancelToken::new(Some(soon));
        let call = |timeout| {
            let timeout = Some(Duration::from_secs(timeout));
            RequestContext::for_call(Lease::unlimited(), &work, timeout, "m")
        };
        assert_eq!((call(60).deadline(), call(60).caller()), (Some(soon), Some("m")));
        assert!(call(1).deadline().unwrap() < soon);
        call(60).cancel().cancel();
        assert!(!work.is_cancelled());
        let given = call(60);
        work.cancel();
        assert!(given.cancel().is_cancelled());
    }

    #[test]
    fn the_shorter_time_holds_and_none_is_beyond_the_limit() {
        let mut request = InferRequest::new(ModelRef::new("m", None).unwrap());
        assert_eq!(seconds(&request, None), Ok(30));
        assert_eq!(seconds(&request, Some(7)), Ok(7));
        assert_eq!(seconds(&request, Some(99_999_999)), Ok(300));
        assert_eq!(seconds(&request, Some(0)), Err(ErrorCode::DeadlineExceeded));
        for (value, expected) in [
            (ParameterValue::Int64(5_000_000), Ok(5)),
            (ParameterValue::Uint64(20_000_000), Ok(7)),
            (ParameterValue::Int64(0), Ok(7)),
            (ParameterValue::Int64(-1), Err(ErrorCode::InvalidArgument)),
            (
                ParameterValue::String("5".into()),
                Err(ErrorCode::InvalidArgument),
            ),
        ] {
            request.parameters.insert("timeout".into(), value);
            assert_eq!(seconds(&request, Some(7)), expected);
        }
    }
}
