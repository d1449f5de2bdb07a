use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use oip_types::{
    ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError,
};

use crate::{
    BoxFuture, CancelToken, Classification, Lease, Logging, ModelConfiguration, ModelRepository, Responses,
    Statistics, SystemSharedMemory, TimeLimits,
};

/// Answers requests, for all transports.
///
/// A service answers requests that fit its models. Its caller does the rest: [`respond`](crate::respond) and
/// [`respond_stream`](crate::respond_stream), by which transports call it, check each request against
/// [`InferenceService::model_metadata`], check and pick the outputs, and put the request's id into the response.
///
/// Extensions of the protocol are optional capabilities: methods that give `None` unless a service offers them.
pub trait InferenceService: Send + Sync + 'static {
    /// The server's metadata.
    fn server_metadata(&self) -> ServerMetadata;

    /// Whether the server wants requests.
    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    /// A model's metadata; without a version, that of the version that the service would choose.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for models and versions that do not exist; [`ErrorCode::Unavailable`] with the reason
    /// for those that exist but are not ready.
    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError>;

    /// Whether a model would take a request now.
    ///
    /// # Errors
    /// As [`InferenceService::model_metadata`].
    fn model_ready(&self, model: ModelRef<'_>) -> Result<(), ServiceError> {
        self.model_metadata(model).map(drop)
    }

    /// Runs a model.
    ///
    /// The transport drops the future when the client is gone or the deadline has passed; the service then stops the
    /// work or does not start it.
    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>>;

    /// Runs a model that may give any number of responses. [`InferenceService::infer`] refuses such models.
    ///
    /// For models that give one response this is [`InferenceService::infer`].
    fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        let answer = self.infer(request, cx);
        Box::pin(async { answer.await.map(Responses::One) })
    }

    /// From now on the service says that it is not ready. It still answers requests. A server calls it when a drain begins.
    fn start_draining(&self) {}

    /// Ends the service, which gets no more requests; blocking. Returns whether all of its work had ended before `deadline`.
    fn stop(&self, _deadline: Instant) -> bool {
        true
    }

    /// Whether the service checks requests and outputs itself, and puts the request's id into the response. An engine does: it knows
    /// the version that a request runs on, and joins requests only after the check. Then the caller does not do it again.
    fn checks_requests(&self) -> bool {
        false
    }

    /// The model repository extension, if it is offered.
    fn repository(&self) -> Option<&dyn ModelRepository> {
        None
    }

    /// The model configuration extension, if it is offered.
    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        None
    }

    /// The statistics extension, if it is offered.
    fn statistics(&self) -> Option<&dyn Statistics> {
        None
    }

    /// The classification extension, if it is offered.
    fn classification(&self) -> Option<&dyn Classification> {
        None
    }

    /// The logging extension, if it is offered.
    fn logging(&self) -> Option<&dyn Logging> {
        None
    }

    /// The system shared memory extension, if it is offered.
    fn shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        None
    }

    /// Whether requests run by their parameter `priority`: the schedule policy extension. `timeout` is every
    /// transport's.
    fn has_schedule_policy(&self) -> bool {
        false
    }
}

/// Whether a server wants requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It does not, and this is why, for people.
    NotReady(String),
}

impl Readiness {
    /// Whether it does.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

/// The context of a request, beside its content.
#[derive(Clone, Debug)]
pub struct RequestContext {
    received: Instant,
    lease: Lease,
    cancel: CancelToken,
    priority: u64,
    /// See [`Self::with_step`].
    step: u32,
    /// See [`Self::for_call`].
    caller: Option<Arc<str>>,
}

impl RequestContext {
    /// The context of a request that was just received and must be answered before `deadline`. Its memory is not
    /// limited.
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

    /// The context of a request that the model `caller` makes of another one while it works. It is charged to `lease`, ends when
    /// `work`, the token of what the model works on, is cancelled or its time is over, and takes `timeout` at most.
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
        // Of its own, so that giving up the call does not cancel the work.
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

    /// The model that made the request, if none but a model did.
    #[must_use]
    pub fn caller(&self) -> Option<&str> {
        self.caller.as_deref()
    }

    /// The same context for a step of a pipeline, by the number that the request's notes have for it.
    #[must_use]
    pub fn with_step(mut self, step: u32) -> Self {
        self.step = step;
        self
    }

    /// The step of a pipeline that it is for; 0 for the request itself, and where nobody wants to know.
    #[must_use]
    pub fn step(&self) -> u32 {
        self.step
    }

    /// The same context with a priority: 1 is the highest, 0 means the model's default.
    #[must_use]
    pub fn with_priority(mut self, priority: u64) -> Self {
        self.priority = priority;
        self
    }

    /// The context of a request under some limits; its lease has its deadline from now on, which counts from the
    /// request's first byte.
    ///
    /// The client may ask for a shorter or longer time than the default, with the request parameter `timeout` (in
    /// microseconds, as Triton has it) or by its transport; the shorter of both holds, and none is longer than the
    /// limit. `priority` is a request parameter too.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when `timeout` is no number of microseconds or `priority` no priority;
    /// [`ErrorCode::DeadlineExceeded`] when the transport gives no time at all. A request whose time passed while it was read is
    /// the service's to refuse, which counts it.
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
        // Triton takes 0 for "no timeout of its own".
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

    /// When the transport had read the request.
    #[must_use]
    pub fn received(&self) -> Instant {
        self.received
    }

    /// The request's memory and time.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The priority: 1 is the highest, 0 means the model's default.
    #[must_use]
    pub fn priority(&self) -> u64 {
        self.priority
    }

    /// Tells when the answer is not wanted any more, by cancellation or deadline.
    #[must_use]
    pub fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    /// The time before which the answer is wanted.
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
