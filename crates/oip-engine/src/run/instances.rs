//! Passes requests to a model: checks each request, queues it, and waits for its response.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    thread,
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use oip_model::{CancelToken, Capabilities, Model};
use oip_service::RequestContext;
use oip_types::{ErrorCode, InferRequest, ModelMetadata, ServiceError};

use crate::{
    batching::{
        batch,
        queue::{PushError, Queue, Runner},
        scheduler::{Ask, BatchPolicy, Scheduler, Ticket},
    },
    infer_result::{InferResult, given_up},
    run::{
        client::Client,
        delivery::{Delivery, FinishedRequest},
        hang_watch::HangWatch,
        in_place::{self, Company, InPlace, Permit, Quickness},
        job::{Job, Rest},
        model_calls::Others,
        several::{Part, Parts},
        threads::{MAX_IDLE, Threads},
    },
    statistics::Recorder,
};

/// The instances of one version of a model: its threads and their queue.
pub(crate) struct Instances {
    shared: Arc<SharedModel>,
}

/// The settings of a version's instances.
#[derive(Clone, Debug)]
pub(crate) struct InstanceSettings {
    /// The model's capabilities.
    pub(crate) capabilities: Capabilities,
    pub(crate) threads: usize,
    pub(crate) queue_capacity: usize,
    pub(crate) policy: BatchPolicy,
    /// How long a thread may continue an abandoned request before it counts as hung.
    pub(crate) hang_timeout: Duration,
    /// Function that each thread calls first.
    pub(crate) on_thread: fn(),
    /// Settings for running the model on its callers' threads; `None` if only the model's own threads may run
    /// it.
    pub(crate) in_place: Option<InPlace>,
    /// The row count and duration of each warm-up run.
    pub(crate) warmed_up: Vec<(u64, Duration)>,
    /// Whether the model may send any number of responses per request.
    pub(crate) is_decoupled: bool,
    /// The other models that this model may call.
    pub(crate) others: Others,
}

/// The state shared by callers and threads. `runner.rs` has the threads' side.
pub(crate) struct SharedModel {
    pub(crate) model: Box<dyn Model>,
    pub(crate) capabilities: Capabilities,
    pub(crate) metadata: Arc<ModelMetadata>,
    pub(crate) policy: BatchPolicy,
    pub(crate) queue: Queue<Job, Rest>,
    pub(crate) hang_watch: HangWatch,
    pub(crate) recorder: Recorder,
    pub(crate) delivery: Delivery,
    pub(crate) in_place: Option<InPlace>,
    pub(crate) quickness: Quickness,
    pub(crate) company: Company,
    pub(crate) is_decoupled: bool,
    pub(crate) others: Others,
    pub(crate) threads: Threads,
}

/// The stream of responses to one request.
pub(crate) struct ResponseStream {
    shared: Arc<SharedModel>,
    parts: Arc<Parts>,
    end: End,
    ticket: Ticket,
    received: Instant,
    cancel: CancelToken,
}

/// The end of a response stream.
enum End {
    Open(oneshot::Receiver<InferResult>),
    /// Result of the request, which the stream returns after the queued responses.
    Told(Result<(), ServiceError>),
    Over,
}

/// A request that entered the queue or bypassed it.
struct QueuedRequest<'s> {
    answer: oneshot::Receiver<InferResult>,
    ticket: Ticket,
    runner: Runner,
    /// Set if the caller runs the request at once, bypassing the queue.
    passed: Option<DirectRequest<'s>>,
}

impl Instances {
    /// Creates the instances. Their threads start with the first requests.
    pub(crate) fn new(model: Box<dyn Model>, metadata: ModelMetadata, settings: InstanceSettings) -> Self {
        let InstanceSettings {
            capabilities,
            threads,
            queue_capacity,
            policy,
            hang_timeout,
            on_thread,
            in_place,
            warmed_up,
            is_decoupled,
            others,
        } = settings;
        let threads = threads.max(1);
        let in_place = in_place
            .filter(|_| !is_decoupled && in_place::is_suitable(&policy, &metadata, capabilities.elsewhere))
            .map(|in_place| match capabilities.elsewhere {
                true => in_place.for_models_elsewhere(),
                false => in_place,
            });
        let quickness = Quickness::new(in_place.as_ref().map(InPlace::limit));
        warmed_up
            .iter()
            .for_each(|(rows, time)| quickness.note(*rows, *time));
        let model_name = metadata.name.clone();
        let shared = Arc::new_cyclic(|shared: &Weak<SharedModel>| SharedModel {
            model,
            capabilities,
            metadata: Arc::new(metadata),
            queue: Queue::new(
                Scheduler::new(policy.clone(), queue_capacity),
                threads,
                Some(MAX_IDLE),
                Instant::now,
                SharedModel::thread_start(shared.clone()),
            ),
            hang_watch: HangWatch::new(threads, hang_timeout),
            recorder: Recorder::default(),
            // Only models with one response per request preserve the order.
            delivery: Delivery::new(policy.preserves_order() && !is_decoupled),
            in_place,
            quickness,
            company: Company::default(),
            policy,
            is_decoupled,
            others,
            threads: Threads::new(model_name, on_thread),
        });
        if is_decoupled {
            shared.queue.stop_joining();
        }
        Self { shared }
    }

    pub(crate) fn metadata(&self) -> &Arc<ModelMetadata> {
        &self.shared.metadata
    }

    /// Checks a request, queues it, and waits for its response.
    ///
    /// If the future is dropped, the request leaves the queue; if it is already running, the model is
    /// notified.
    pub(crate) async fn infer(&self, request: InferRequest, cx: &RequestContext) -> InferResult {
        let shared = &*self.shared;
        let queued = shared.enqueue(request, cx, None).inspect_err(|error| {
            shared.recorder.failure(error.code(), cx.received().elapsed());
        })?;
        let QueuedRequest {
            answer,
            ticket,
            runner,
            passed,
        } = queued;
        let waiting = CancelOnDrop { shared, ticket, cx };
        if let Some(passed) = passed {
            shared.run_passed(passed);
        } else if let (Runner::Caller, Some(in_place)) = (runner, &shared.in_place) {
            if !shared.capabilities.elsewhere && shared.company.is_likely() {
                in_place.let_others_go_first().await;
            }
            shared.run_in_place(in_place, ticket);
        }
        let answer = answer.await;
        std::mem::forget(waiting);
        answer.unwrap_or_else(|_| Err(shared.lost(ticket, cx.received())))
    }

    /// Returns whether the model may send any number of responses per request.
    pub(crate) fn is_decoupled(&self) -> bool {
        self.shared.is_decoupled
    }

    /// Checks and queues a request that may get any number of responses.
    pub(crate) fn infer_several(
        &self,
        request: InferRequest,
        cx: &RequestContext,
    ) -> Result<ResponseStream, ServiceError> {
        let shared = self.shared.clone();
        let parts = Arc::new(Parts::default());
        let queued = shared
            .enqueue(request, cx, Some(parts.clone()))
            .map(|queued| (queued.answer, queued.ticket));
        let (answer, ticket) = queued.inspect_err(|error| {
            shared.recorder.failure(error.code(), cx.received().elapsed());
        })?;
        Ok(ResponseStream {
            shared,
            parts,
            end: End::Open(answer),
            ticket,
            received: cx.received(),
            cancel: cx.cancel().clone(),
        })
    }

    /// Returns the reason why the loaded model cannot run requests: all threads are hanging.
    pub(crate) fn unavailable(&self) -> Option<String> {
        let shared = &self.shared;
        shared.unavailable(shared.hang_watch.recently_lost(Instant::now))
    }

    /// Returns the recorder of the request statistics.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// Returns whether requests are batched. Batching stops if the model's outputs do not have as many rows
    /// as its inputs.
    pub(crate) fn is_joining(&self) -> bool {
        self.shared.queue.is_joining()
    }

    /// Returns the number of queued requests.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.queue.len()
    }

    /// Refuses new requests; queued ones are still answered.
    pub(crate) fn stop(&self) {
        self.shared.queue.close();
    }

    /// Waits until the threads end after [`Instances::stop`], and returns whether all did. Requests that are
    /// still queued at the deadline are refused.
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        let mut all = self.shared.threads.join(deadline);
        // Callers that run a request in place are not among these threads, so also wait for the queue.
        while all && !self.shared.queue.is_over() {
            if Instant::now() >= deadline {
                all = false;
            }
            thread::sleep(Duration::from_millis(1));
            all &= self.shared.threads.join(deadline);
        }
        self.shared.refuse_all("it is being unloaded");
        if all {
            // No thread runs the model at this point. A panic in `end` is ignored.
            let _ = catch_unwind(AssertUnwindSafe(|| self.shared.model.end()));
        }
        all
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the client's error for a request that the queue refused.
fn refused(error: &PushError) -> ServiceError {
    match error {
        PushError::Full => ServiceError::new(ErrorCode::Overloaded, "its queue is full; try again later"),
        PushError::Closed => ServiceError::new(ErrorCode::Unavailable, "it is being unloaded"),
    }
}

impl SharedModel {
    /// Checks a request and queues it, or lets it bypass the queue. `parts` receives the responses of a
    /// request with several.
    fn enqueue(
        &self,
        mut request: InferRequest,
        cx: &RequestContext,
        parts: Option<Arc<Parts>>,
    ) -> Result<QueuedRequest<'_>, ServiceError> {
        self.metadata.check_request(&request)?;
        let ask = self.ask(&mut request, cx)?;
        // With several clients, a request to a model in another process goes to a thread: while the thread
        // waits for that process, more requests can arrive and form a batch.
        let is_for_caller = !self.capabilities.elsewhere || !self.company.is_likely_elsewhere();
        let measured_rows = ask.measured_rows;
        let is_quick = is_for_caller && measured_rows.is_some_and(|rows| self.quickness.is_quick(rows));
        let queued = Instant::now();
        self.check_available(queued)?;
        let (sender, answer) = oneshot::channel();
        let rows = ask.rows;
        let may_pass = is_quick && parts.is_none() && !self.company.is_likely();
        let enter = |ticket: Ticket| self.delivery.enter(ticket.arrival());
        let job = |ticket: Ticket| {
            let client = Client {
                rows,
                measured_rows,
                arrival: ticket.arrival(),
                received: cx.received(),
                queued,
                cancel: cx.cancel().clone(),
                lease: cx.lease().clone(),
                step: cx.step(),
                answer: sender,
                parts,
            };
            Job { request, client }
        };
        if may_pass
            && let Some(in_place) = &self.in_place
            && let Some((ticket, room)) = self.pass(in_place, &ask, queued, enter)
        {
            let job = job(ticket);
            return Ok(QueuedRequest {
                answer,
                ticket,
                runner: Runner::Caller,
                passed: Some(DirectRequest { job, room }),
            });
        }
        let wanted = if is_quick { Runner::Caller } else { Runner::Thread };
        let pushed = self.queue.push(ask, wanted, |ticket| {
            enter(ticket);
            job(ticket)
        });
        let (ticket, runner) = pushed.map_err(|error| refused(&error))?;
        Ok(QueuedRequest {
            answer,
            ticket,
            runner,
            passed: None,
        })
    }

    /// Describes a request for the scheduler. Removes the parameters that only the scheduler reads: requests
    /// that differ only in them may be batched.
    fn ask(&self, request: &mut InferRequest, cx: &RequestContext) -> Result<Ask, ServiceError> {
        let timeout = request
            .parameters
            .remove("timeout")
            .and_then(|timeout| timeout.as_u64());
        request.parameters.remove("priority");
        let ask = batch::ask(&self.policy, &self.metadata, request)?;
        Ok(Ask {
            priority: cx.priority(),
            timeout: timeout.map(Duration::from_micros),
            deadline: cx.deadline(),
            measured_rows: ask.measured_rows.filter(|_| self.in_place.is_some()),
            ..ask
        })
    }

    /// Returns a ticket and a permit to run a request at once on its caller's thread, if the request may
    /// bypass the queue. Calls `enter` with the ticket first.
    fn pass<'s>(
        &'s self,
        in_place: &'s InPlace,
        ask: &Ask,
        now: Instant,
        enter: impl FnOnce(Ticket),
    ) -> Option<(Ticket, Room<'s>)> {
        if !in_place::may_run(&self.capabilities, &self.quickness, ask.measured_rows?) {
            return None;
        }
        let permit = in_place.enter()?;
        let (ticket, slot) = self.queue.pass(ask, now, enter)?;
        let held = InPlaceSlot { shared: self, slot };
        Some((
            ticket,
            Room {
                held,
                _permit: permit,
            },
        ))
    }

    /// Returns an error if all threads are lost at `now`.
    fn check_available(&self, now: Instant) -> Result<(), ServiceError> {
        match self.unavailable(self.hang_watch.recently_lost(|| now)) {
            Some(reason) => Err(ServiceError::new(ErrorCode::Unavailable, reason)),
            None => Ok(()),
        }
    }

    /// If all threads are lost, refuses the queued requests and returns the reason; otherwise returns `None`.
    /// `lost` is the number of lost threads.
    fn unavailable(&self, lost: usize) -> Option<String> {
        let threads = self.hang_watch.len();
        if lost < threads {
            return None;
        }
        let reason = format!("all of its {threads} instances hang in abandoned requests");
        self.refuse_all(&reason);
        Some(reason)
    }

    /// Returns the function with which the queue starts a thread.
    fn thread_start(shared: Weak<Self>) -> impl Fn(&Queue<Job, Rest>) {
        move |queue| match shared.upgrade() {
            Some(shared) => shared.start_thread(),
            None => drop(queue.not_started()),
        }
    }

    /// Starts a thread for the queue. If that fails and no other thread is left, refuses the queued requests.
    fn start_thread(self: &Arc<Self>) {
        let shared = self.clone();
        let Err(error) = self.threads.start(move || {
            shared.queue.begin();
            shared.serve();
        }) else {
            return;
        };
        let model = &self.metadata.name;
        tracing::error!(model, %error, "cannot start a thread to run a model");
        if self.queue.not_started() {
            self.refuse_all("no more threads can be started to run it");
        }
    }

    /// Refuses all queued requests.
    fn refuse_all(&self, reason: &str) {
        for job in self.queue.drain() {
            self.refuse(job, ServiceError::new(ErrorCode::Unavailable, reason));
        }
    }

    /// Refuses a request that was not run.
    pub(crate) fn refuse(&self, job: Job, error: ServiceError) {
        let refused = FinishedRequest {
            client: job.client,
            answer: Err(error),
            run: None,
        };
        self.delivery.finish([refused], &self.recorder);
    }

    /// Returns the error for a request whose thread panicked before it sent a response.
    fn lost(&self, ticket: Ticket, received: Instant) -> ServiceError {
        let error = ServiceError::internal("the request was lost");
        self.recorder.failure(error.code(), received.elapsed());
        self.delivery.leave(ticket.arrival(), &self.recorder);
        error
    }

    /// Cancels a request whose client has disconnected.
    fn give_up(&self, ticket: Ticket, cancel: &CancelToken) {
        let code = given_up(cancel);
        cancel.cancel();
        // A request that a thread has taken is counted by that thread. Only queued requests are counted here.
        if let Some(job) = self.queue.cancel(ticket) {
            self.recorder.failure(code, job.client.received.elapsed());
        }
        // The request leaves the order of responses even if it is running: later requests must not wait for a
        // response that is not sent.
        self.delivery.leave(ticket.arrival(), &self.recorder);
        // If this was the last client of the batch, the hang timeout starts now.
        self.hang_watch.look(Instant::now());
    }
}

impl ResponseStream {
    /// Returns the next response, `None` after the last one.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, ServiceError>>> {
        if let Poll::Ready(part) = self.parts.poll_take(cx) {
            return Poll::Ready(Some(Ok(part)));
        }
        if let End::Open(end) = &mut self.end {
            let told = ready!(Pin::new(end).poll(cx));
            let told = told.unwrap_or_else(|_| Err(self.shared.lost(self.ticket, self.received)));
            self.end = End::Told(told.map(drop));
            // Return the responses that were queued before the end was signalled.
            if let Poll::Ready(part) = self.parts.poll_take(cx) {
                return Poll::Ready(Some(Ok(part)));
            }
        }
        match std::mem::replace(&mut self.end, End::Over) {
            End::Told(Err(error)) => Poll::Ready(Some(Err(error))),
            _ => Poll::Ready(None),
        }
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.parts.close();
        if matches!(self.end, End::Open(_)) && !self.parts.took_last() {
            self.shared.give_up(self.ticket, &self.cancel);
        }
    }
}

/// A request that its caller runs at once, bypassing the queue.
pub(crate) struct DirectRequest<'s> {
    pub(crate) job: Job,
    pub(crate) room: Room<'s>,
}

/// A caller's right to run a request: an instance, and a permit to enter a model.
pub(crate) struct Room<'s> {
    pub(crate) held: InPlaceSlot<'s>,
    _permit: Permit<'s>,
}

/// The instance in which a caller runs a batch. Dropping the value frees the instance.
pub(crate) struct InPlaceSlot<'s> {
    pub(crate) shared: &'s SharedModel,
    pub(crate) slot: usize,
}

impl InPlaceSlot<'_> {
    /// Passes the instance to one of the model's threads, with the unfinished run.
    pub(crate) fn hand_over(self, rest: Rest) {
        self.shared.queue.hand_over(self.slot, rest);
        std::mem::forget(self);
    }
}

impl Drop for InPlaceSlot<'_> {
    fn drop(&mut self) {
        self.shared.hang_watch.end(self.slot);
        self.shared.queue.done_in_place(self.slot);
    }
}

/// Guard of a caller's request. Dropping the guard cancels the request.
struct CancelOnDrop<'a> {
    shared: &'a SharedModel,
    ticket: Ticket,
    cx: &'a RequestContext,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.shared.give_up(self.ticket, self.cx.cancel());
    }
}
