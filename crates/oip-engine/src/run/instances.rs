use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    thread,
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use oip_service::{CancelToken, Capabilities, Model, RequestContext};
use oip_types::{ErrorCode, InferRequest, ModelMetadata, ServiceError};

use crate::{
    batching::{
        batch,
        queue::{PushError, Queue, Runner},
        scheduler::{Ask, BatchPolicy, Scheduler, Ticket},
    },
    run::{
        client::{Answer, Client, given_up},
        delivery::{Delivery, Finished},
        hang_watch::HangWatch,
        in_place::{self, Company, InPlace, Permit, Quickness},
        job::{Job, Rest},
        others::Others,
        several::{Part, Parts},
        statistics::Recorder,
        threads::{MAX_IDLE, Threads},
    },
};

/// The instances of one version of a model: its threads and the queue before them.
pub(crate) struct Instances {
    shared: Arc<Shared>,
}

/// How a version is run.
#[derive(Clone, Debug)]
pub(crate) struct InstanceSettings {
    /// What the model can do.
    pub(crate) capabilities: Capabilities,
    pub(crate) threads: usize,
    pub(crate) queue_capacity: usize,
    pub(crate) policy: BatchPolicy,
    /// How long a thread may go on with what nobody waits for before it counts as lost.
    pub(crate) hang_timeout: Duration,
    /// Called first on each thread.
    pub(crate) on_thread: fn(),
    /// Whether callers may run it.
    pub(crate) in_place: Option<InPlace>,
    /// Runs before it was ready: their rows, and how long they took.
    pub(crate) warmed_up: Vec<(u64, Duration)>,
    /// Whether it gives any number of answers to a request.
    pub(crate) is_decoupled: bool,
    /// The other models that it may ask.
    pub(crate) others: Others,
}

/// What callers and threads share; `runner.rs` has the threads' side.
pub(crate) struct Shared {
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

/// Several answers to one request, as they are made.
pub(crate) struct Several {
    shared: Arc<Shared>,
    parts: Arc<Parts>,
    end: End,
    ticket: Ticket,
    received: Instant,
    cancel: CancelToken,
}

/// The end of several answers.
enum End {
    Open(oneshot::Receiver<Answer>),
    /// It comes after the answers that still wait.
    Told(Result<(), ServiceError>),
    Over,
}

/// A request that was put into the queue, or did not have to be.
struct Queued<'s> {
    answer: oneshot::Receiver<Answer>,
    ticket: Ticket,
    runner: Runner,
    /// A request that is run now, without entering the queue.
    passed: Option<Passed<'s>>,
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
        let is_elsewhere = capabilities.elsewhere;
        let in_place = in_place
            .filter(|_| !is_decoupled && in_place::is_suitable(&policy, &metadata, is_elsewhere))
            .map(|in_place| {
                if is_elsewhere {
                    in_place.for_models_elsewhere()
                } else {
                    in_place
                }
            });
        let quickness = Quickness::new(in_place.as_ref().map(InPlace::limit));
        warmed_up
            .iter()
            .for_each(|(rows, time)| quickness.note(*rows, *time));
        let model_name = metadata.name.clone();
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            model,
            capabilities,
            metadata: Arc::new(metadata),
            queue: Queue::new(
                Scheduler::new(policy.clone(), queue_capacity),
                threads,
                Some(MAX_IDLE),
                Instant::now,
                {
                    let shared = shared.clone();
                    move |queue| match shared.upgrade() {
                        Some(shared) => shared.start_thread(),
                        None => drop(queue.not_started()),
                    }
                },
            ),
            hang_watch: HangWatch::new(threads, hang_timeout),
            recorder: Recorder::default(),
            // Only models with one answer for each request keep the order of answers.
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

    /// Checks a request, puts it into the queue, and waits for its answer.
    ///
    /// When the future is dropped the request leaves the queue; if it runs already, the model is told.
    pub(crate) async fn infer(&self, request: InferRequest, cx: &RequestContext) -> Answer {
        let shared = &*self.shared;
        let queued = shared.enqueue(request, cx, None).inspect_err(|error| {
            shared.recorder.failure(error.code(), cx.received().elapsed());
        })?;
        let Queued {
            answer,
            ticket,
            runner,
            passed,
        } = queued;
        let waiting = Waiting { shared, ticket, cx };
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

    /// Whether the model gives any number of answers to a request.
    pub(crate) fn is_decoupled(&self) -> bool {
        self.shared.is_decoupled
    }

    /// Checks a request of which any number of answers may come, and puts it into the queue.
    pub(crate) fn infer_several(
        &self,
        request: InferRequest,
        cx: &RequestContext,
    ) -> Result<Several, ServiceError> {
        let shared = self.shared.clone();
        let parts = Arc::new(Parts::default());
        let queued = shared
            .enqueue(request, cx, Some(parts.clone()))
            .map(|queued| (queued.answer, queued.ticket));
        let (answer, ticket) = queued.inspect_err(|error| {
            shared.recorder.failure(error.code(), cx.received().elapsed());
        })?;
        Ok(Several {
            shared,
            parts,
            end: End::Open(answer),
            ticket,
            received: cx.received(),
            cancel: cx.cancel().clone(),
        })
    }

    /// Why no request can be run although the model is loaded: all threads are lost.
    pub(crate) fn unavailable(&self) -> Option<String> {
        let shared = &self.shared;
        shared.unavailable(shared.hang_watch.recently_lost(Instant::now))
    }

    /// What happened to its requests.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// Whether requests are joined (still).
    pub(crate) fn is_joining(&self) -> bool {
        self.shared.queue.is_joining()
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.queue.len()
    }

    /// Takes no more requests; those in the queue are still answered.
    pub(crate) fn stop(&self) {
        self.shared.queue.close();
    }

    /// Waits for the threads to end after [`Instances::stop`], and returns whether all of them did. Requests that still
    /// wait at the deadline are refused.
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        let mut all = self.shared.threads.join(deadline);
        // Callers that run a request in place have no thread to join.
        while all && !self.shared.queue.is_over() {
            if Instant::now() >= deadline {
                all = false;
            }
            thread::sleep(Duration::from_millis(1));
            all &= self.shared.threads.join(deadline);
        }
        self.shared.refuse_all("it is being unloaded");
        if all {
            // No thread runs the model any more, so only a panic makes this fail.
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

impl Shared {
    fn enqueue(
        &self,
        mut request: InferRequest,
        cx: &RequestContext,
        parts: Option<Arc<Parts>>,
    ) -> Result<Queued<'_>, ServiceError> {
        self.metadata.check_request(&request)?;
        // These are the scheduler's: requests that differ in them are the same to the model.
        let timeout = request
            .parameters
            .remove("timeout")
            .and_then(|timeout| timeout.as_u64());
        request.parameters.remove("priority");
        let ask = batch::ask(&self.policy, &self.metadata, &request)?;
        let ask = Ask {
            priority: cx.priority(),
            timeout: timeout.map(Duration::from_micros),
            deadline: cx.deadline(),
            measured_rows: ask.measured_rows.filter(|_| self.in_place.is_some()),
            ..ask
        };
        // A model in another process: other requests collect while one of its threads waits.
        let is_for_caller = !self.capabilities.elsewhere || !self.company.is_likely_elsewhere();
        let measured_rows = ask.measured_rows;
        let is_quick = is_for_caller && measured_rows.is_some_and(|rows| self.quickness.is_quick(rows));
        let wanted = match is_quick {
            true => Runner::Caller,
            false => Runner::Thread,
        };
        let queued = Instant::now();
        let lost = self.hang_watch.recently_lost(|| queued);
        if let Some(reason) = self.unavailable(lost) {
            return Err(ServiceError::new(ErrorCode::Unavailable, reason));
        }
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
            return Ok(Queued {
                answer,
                ticket,
                runner: Runner::Caller,
                passed: Some(Passed { job, room }),
            });
        }
        let pushed = self.queue.push(ask, wanted, |ticket| {
            enter(ticket);
            job(ticket)
        });
        match pushed {
            Ok((ticket, runner)) => Ok(Queued {
                answer,
                ticket,
                runner,
                passed: None,
            }),
            Err(PushError::Full) => Err(ServiceError::new(
                ErrorCode::Overloaded,
                "its queue is full; try again later",
            )),
            Err(PushError::Closed) => Err(ServiceError::new(ErrorCode::Unavailable, "it is being unloaded")),
        }
    }

    /// Room to run a request on the thread of its caller at once, and its ticket, if it need not enter the queue. `enter` is told
    /// the ticket.
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
        let held = HeldInPlace { shared: self, slot };
        Some((
            ticket,
            Room {
                held,
                _permit: permit,
            },
        ))
    }

    /// Why nothing can be run when so many threads are lost. Then those that wait are told too.
    fn unavailable(&self, lost: usize) -> Option<String> {
        let threads = self.hang_watch.len();
        if lost < threads {
            return None;
        }
        let reason = format!("all of its {threads} instances hang in requests that were given up");
        self.refuse_all(&reason);
        Some(reason)
    }

    /// Starts a thread for the queue. If the system gives none and no other thread is left, refuses what waits.
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
            self.refuse_all("the system gives no more threads to run it");
        }
    }

    /// Answers all that wait.
    fn refuse_all(&self, reason: &str) {
        for job in self.queue.drain() {
            self.refuse(job, ServiceError::new(ErrorCode::Unavailable, reason));
        }
    }

    /// Answers a request that was not run.
    pub(crate) fn refuse(&self, job: Job, error: ServiceError) {
        let refused = Finished {
            client: job.client,
            answer: Err(error),
            run: None,
        };
        self.delivery.finish([refused], &self.recorder);
    }

    /// A thread panicked between taking a request and answering it.
    fn lost(&self, ticket: Ticket, received: Instant) -> ServiceError {
        let error = ServiceError::internal("the request was lost");
        self.recorder.failure(error.code(), received.elapsed());
        self.delivery.leave(ticket.arrival(), &self.recorder);
        error
    }

    /// The client of a request has given up.
    fn give_up(&self, ticket: Ticket, cancel: &CancelToken) {
        let code = given_up(cancel);
        cancel.cancel();
        // The thread that takes a request out of the queue counts it.
        if let Some(job) = self.queue.cancel(ticket) {
            self.recorder.failure(code, job.client.received.elapsed());
        }
        // Also if it is being run: others do not wait for an answer that nobody takes.
        self.delivery.leave(ticket.arrival(), &self.recorder);
        // The batch may be one that nobody waits for from now on.
        self.hang_watch.look(Instant::now());
    }
}

impl Several {
    /// The next answer; `None` after the last one.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, ServiceError>>> {
        if let Poll::Ready(part) = self.parts.poll_take(cx) {
            return Poll::Ready(Some(Ok(part)));
        }
        if let End::Open(end) = &mut self.end {
            let told = ready!(Pin::new(end).poll(cx));
            let told = told.unwrap_or_else(|_| Err(self.shared.lost(self.ticket, self.received)));
            self.end = End::Told(told.map(drop));
            // Requests that came in before the end was signalled.
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

impl Drop for Several {
    fn drop(&mut self) {
        self.parts.close();
        if matches!(self.end, End::Open(_)) && !self.parts.took_last() {
            self.shared.give_up(self.ticket, &self.cancel);
        }
    }
}

/// A request that its caller runs at once.
pub(crate) struct Passed<'s> {
    pub(crate) job: Job,
    pub(crate) room: Room<'s>,
}

/// A caller's permit to run a request: an instance, and the right to be in a model.
pub(crate) struct Room<'s> {
    pub(crate) held: HeldInPlace<'s>,
    _permit: Permit<'s>,
}

/// The instance that a caller runs a batch in, given back whatever happens.
pub(crate) struct HeldInPlace<'s> {
    pub(crate) shared: &'s Shared,
    pub(crate) slot: usize,
}

impl HeldInPlace<'_> {
    /// Leaves the instance to one of the model's threads, with what is to be done in it.
    pub(crate) fn hand_over(self, rest: Rest) {
        self.shared.queue.hand_over(self.slot, rest);
        std::mem::forget(self);
    }
}

impl Drop for HeldInPlace<'_> {
    fn drop(&mut self) {
        self.shared.hang_watch.end(self.slot);
        self.shared.queue.done_in_place(self.slot);
    }
}

/// Lives as long as the caller waits; dropped when the caller gives up.
struct Waiting<'a> {
    shared: &'a Shared,
    ticket: Ticket,
    cx: &'a RequestContext,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.give_up(self.ticket, self.cx.cancel());
    }
}
