//! Runs a model: takes what waits, runs it together, and answers each with its own rows. On the model's threads, or on that of
//! a caller.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use oip_service::{Call, CancelToken, Lease, Outcome, Outputs, RequestPart};
use oip_types::{ErrorCode, InferOutput, InferRequest, ServiceError};

use crate::{
    batching::{
        batch,
        queue::Work,
        scheduler::{Expiry, Ticket},
    },
    run::{
        charging::{self, Inputs},
        client::{Answer, Client},
        delivery::{Finished, Run},
        in_place::{self, InPlace},
        instances::{HeldInPlace, Passed, Shared},
        job::{Called, Job, Rest},
        several::{Parts, Sink, SinkEnd},
        statistics::Execution,
        threads::{Held, MOST_SPARE},
    },
};

impl Shared {
    /// The life of a thread. The model's panics are caught where it is called. One anywhere else, such as in freeing what
    /// a model gave, loses the requests that the thread has in hand, whose callers are told; the thread goes on.
    pub(crate) fn serve(self: &Arc<Self>) {
        let held = Held::default();
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.serve_until_closed(&held))) {
            let slot = held.slot.get();
            if let Some(slot) = slot {
                self.hang_watch.end(slot);
            }
            let (model, cause) = (&self.metadata.name, panic_message(&*panic));
            tracing::error!(
                model,
                slot,
                cause,
                "an instance panicked outside of its model; its requests are lost"
            );
            if held.is_beside.take() && !self.come_back() {
                return;
            }
            // Should it go on like this, it does not take a core.
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The life of a thread until the queue is closed, or there are enough other threads.
    fn serve_until_closed(self: &Arc<Self>, held: &Held) {
        while let Some(work) = self.queue.take(held.slot.take()) {
            held.slot.set(work.slot);
            if self.capabilities.elsewhere {
                self.company.note(work.batch.len());
            }
            match self.is_decoupled {
                true => self.run_decoupled(work, held),
                false => self.run(work),
            }
            if held.is_beside.take() && !self.come_back() {
                return;
            }
        }
    }

    /// Has a thread that went on without an instance take work again. Returns whether it is needed.
    fn come_back(&self) -> bool {
        self.threads.come_back();
        self.queue.return_thread(MOST_SPARE)
    }

    /// Runs requests of which any number of answers may come.
    fn run_decoupled(self: &Arc<Self>, work: Work<Job, Rest>, held: &Held) {
        for (job, expiry) in work.expired {
            self.refuse(job, expired(expiry));
        }
        for job in work.batch {
            let taken = Instant::now();
            match (job.client.parts.clone(), held.slot.get()) {
                (Some(parts), _) => {
                    if let Some(Job { request, client }) = self.still_wanted(job, taken) {
                        self.run_several(held, request, client, &parts, taken);
                    }
                }
                (None, Some(slot)) => self.run_one(slot, job, taken),
                // Nothing is joined, so there is one, which has an instance.
                (None, None) => drop(job),
            }
        }
    }

    /// Gives the instance of a thread to others, while the thread goes on with its request.
    fn free_instance(self: &Arc<Self>, held: &Held) {
        if let Some(slot) = held.slot.get()
            && self.threads.leave()
        {
            held.slot.set(None);
            held.is_beside.set(true);
            self.left(slot);
            self.queue.leave_thread();
            self.queue.free(slot);
        }
    }

    /// Runs what waits on the thread of a caller, until the caller's own request has left the queue. Its answer is there
    /// then, unless somebody else runs it now.
    pub(crate) fn run_in_place(&self, in_place: &InPlace, ticket: Ticket) {
        /// Batches that a caller runs before its own.
        const MAX_BATCHES: usize = 2;
        let Some(_permit) = in_place.enter() else {
            return self.queue.leave();
        };
        for _ in 0..MAX_BATCHES {
            let may_run = |rows| in_place::may_run(&self.capabilities, &self.quickness, rows);
            let Some(work) = self.queue.take_in_place(ticket, may_run) else {
                return;
            };
            self.company.note(work.batch.len());
            let held = work.slot.map(|slot| HeldInPlace { shared: self, slot });
            if !self.capabilities.elsewhere {
                self.run(work);
            } else if let (Some(rest), Some(held)) = (self.begin(work, in_place.limit()), held) {
                held.hand_over(rest);
            }
        }
        // Others of higher priority, or of other batches, keep coming.
        self.queue.leave();
    }

    /// Runs a request that did not have to enter the queue.
    pub(crate) fn run_passed(&self, passed: Passed<'_>) {
        let Passed { job, room } = passed;
        self.company.note(1);
        // It has not waited: this is the time at which it came.
        let (slot, taken) = (room.held.slot, job.client.queued);
        let Some(in_place) = self.in_place.as_ref().filter(|_| self.capabilities.elsewhere) else {
            return self.run_one(slot, job, taken);
        };
        if let Some(rest) = self.begin_one(slot, job, taken, in_place.limit()) {
            room.held.hand_over(rest);
        }
    }

    fn run(&self, work: Work<Job, Rest>) {
        for (job, expiry) in work.expired {
            self.refuse(job, expired(expiry));
        }
        let Some(slot) = work.slot else {
            return;
        };
        match work.rest {
            None => self.run_batch(slot, work.batch, Instant::now()),
            Some(Rest::Batch { jobs, taken }) => {
                let now = Instant::now();
                let jobs = jobs.into_iter().filter_map(|job| self.still_wanted(job, now));
                self.run_batch(slot, jobs.collect(), taken);
            }
            Some(Rest::Run { called, rest }) => {
                let Called { client, inputs, .. } = &called;
                let (cancel, lease) = (&client.cancel, &client.lease);
                let others = self.others.for_run(&self.metadata.name, cancel, lease);
                let given = self.guarded(slot, cancel, || rest.finish(cancel, &others));
                let given = given.and_then(|outputs| self.charged(lease, inputs, outputs));
                self.finish_one(called, given);
            }
        }
    }

    /// Begins on a caller's thread what runs elsewhere, and returns what is left after so long.
    fn begin(&self, work: Work<Job, Rest>, patience: Duration) -> Option<Rest> {
        for (job, expiry) in work.expired {
            self.refuse(job, expired(expiry));
        }
        let (slot, taken, mut jobs) = (work.slot?, Instant::now(), work.batch);
        if jobs.len() != 1 {
            return Some(Rest::Batch { jobs, taken });
        }
        self.begin_one(slot, jobs.pop()?, taken, patience)
    }

    fn begin_one(&self, slot: usize, job: Job, taken: Instant, patience: Duration) -> Option<Rest> {
        let Job { request, client } = self.still_wanted(job, taken)?;
        let called = Called {
            wanted: request.outputs.clone(),
            inputs: Inputs::of(&request),
            start: Instant::now(),
            taken,
            client,
        };
        let cancel = &called.client.cancel;
        let call = Call::new(request, cancel).with_patience(Some(patience));
        let given = match self.guarded(slot, cancel, || self.model.run(call)) {
            Ok(Outcome::Unfinished(rest)) => return Some(Rest::Run { called, rest }),
            Ok(outcome) => outcome.into_outputs(),
            Err(error) => Err(error),
        };
        let given = given.and_then(|outputs| self.charged(&called.client.lease, &called.inputs, outputs));
        self.finish_one(called, given);
        None
    }

    fn run_batch(&self, slot: usize, mut batch: Vec<Job>, taken: Instant) {
        if batch.len() == 1 {
            batch.into_iter().for_each(|job| self.run_one(slot, job, taken));
        } else {
            batch = batch
                .into_iter()
                .filter_map(|job| self.still_wanted(job, taken))
                .collect();
            self.run_joined(slot, batch, taken);
        }
    }

    /// Gives a request back unless its client has left or its time is over.
    fn still_wanted(&self, job: Job, now: Instant) -> Option<Job> {
        let client = &job.client;
        let error = if client.cancel.is_expired_at(now) {
            expired(Expiry::Deadline)
        } else if client.cancel.is_cancelled_at(now) || client.answer.is_canceled() {
            ServiceError::new(ErrorCode::Cancelled, "the request was cancelled")
        } else {
            client.lease.note_run();
            return Some(job);
        };
        self.refuse(job, error);
        None
    }

    /// Runs a request by itself, without a copy.
    fn run_one(&self, slot: usize, job: Job, taken: Instant) {
        let Some(Job { request, client }) = self.still_wanted(job, taken) else {
            return;
        };
        let _strings = match charging::charge_strings(&client.lease, &request) {
            Ok(strings) => strings,
            Err(error) => return self.refuse(Job { request, client }, error),
        };
        let called = Called {
            wanted: request.outputs.clone(),
            inputs: Inputs::of(&request),
            start: Instant::now(),
            taken,
            client,
        };
        let Called { client, inputs, .. } = &called;
        let given = self.call(slot, request, &[], inputs, &client.cancel, &client.lease);
        let given = given.and_then(|given| Outcome::from(given).into_outputs());
        self.finish_one(called, given);
    }

    /// Answers a request that was run by itself.
    fn finish_one(&self, one: Called, given: Answer) {
        let called = Instant::now();
        let Called {
            client,
            wanted,
            start,
            taken,
            ..
        } = one;
        let answer = given.and_then(|outputs| self.metadata.pick_outputs(&wanted, outputs));
        // Where nobody has configured batches, a request may be larger than one.
        let is_batch = self.policy.max_rows() > 0 && self.policy.is_configured();
        let answer = answer.and_then(|outputs| match is_batch {
            true => batch::check_rows(&outputs, client.rows).map(|()| outputs),
            false => Ok(outputs),
        });
        let end = Instant::now();
        if let Some(rows) = client.measured_rows {
            self.quickness.note(rows, called - start);
        }
        let execution = Execution {
            rows: client.rows,
            input: start - taken.min(start),
            infer: called - start,
            output: end - called,
        };
        self.recorder.execution(&execution);
        let finished = Finished {
            client,
            answer,
            run: Some(Run { execution, taken }),
        };
        self.delivery.finish([finished], &self.recorder);
    }

    /// Runs a request of which any number of answers may come.
    fn run_several(
        self: &Arc<Self>,
        held: &Held,
        request: InferRequest,
        client: Client,
        parts: &Parts,
        taken: Instant,
    ) {
        let start = Instant::now();
        let mut sink = Sink {
            parts,
            metadata: &self.metadata,
            lends_memory: self.capabilities.lends_memory,
            inputs: Inputs::of(&request),
            wanted: request.outputs.clone(),
            cancel: &client.cancel,
            lease: &client.lease,
            free_instance: &|| self.free_instance(held),
            end: SinkEnd::default(),
        };
        let others = self
            .others
            .for_run(&self.metadata.name, &client.cancel, &client.lease);
        let run = || {
            let call = Call::new(request, &client.cancel).with_others(&others);
            let outcome = self.model.run(call.with_responses(Some(&mut sink)))?;
            outcome.send_to(&mut sink)
        };
        if let Some(slot) = held.slot.get() {
            self.hang_watch.begin(slot, &client.cancel);
        }
        let given = self.caught(run);
        if let Some(slot) = held.slot.get() {
            self.left(slot);
        }
        let end = sink.end;
        // The time that the model waited for its client is not its own.
        let execution = Execution {
            rows: client.rows,
            input: start - taken.min(start),
            infer: start.elapsed().saturating_sub(end.blocked),
            output: Duration::ZERO,
        };
        self.recorder.execution(&execution);
        let finished = Finished {
            answer: end.result(given, &client.cancel).map(|()| Vec::new()),
            run: Some(Run { execution, taken }),
            client,
        };
        self.delivery.finish([finished], &self.recorder);
    }

    /// Runs requests together. When that fails each is run by itself, once, so that only those fail that must.
    fn run_joined(&self, slot: usize, mut jobs: Vec<Job>, taken: Instant) {
        if jobs.len() < 2 {
            jobs.drain(..).for_each(|job| self.run_one(slot, job, taken));
            return;
        }
        let (requests, clients): (Vec<InferRequest>, Vec<Client>) =
            jobs.into_iter().map(|job| (job.request, job.client)).unzip();
        let rows: Vec<u64> = clients.iter().map(|client| client.rows).collect();
        let tokens: Vec<CancelToken> = clients.iter().map(|client| client.cancel.clone()).collect();
        let cancel = CancelToken::all_of(&tokens);
        let mut execution = Execution {
            rows: rows.iter().fold(0, |sum, rows| sum.saturating_add(*rows)),
            ..Execution::default()
        };
        // The batch's memory belongs to all of its requests.
        let Some(lease) = clients.first().map(|client| client.lease.for_shared_work()) else {
            return;
        };
        let shared = Joined {
            requests: &requests,
            rows: &rows,
            cancel: &cancel,
            lease: &lease,
        };
        let shared_inputs = &self.policy.independent_rows().shared_inputs;
        let joined = charging::join(&lease, &requests, shared_inputs)
            .and_then(|joined| Ok((charging::charge_strings(&lease, &joined)?, joined)));
        // Where there is no memory to join them, no model is called.
        let is_called = joined.is_ok();
        let answers =
            joined.and_then(|(_strings, joined)| self.run_rows(slot, &shared, joined, &mut execution, taken));
        match answers {
            Ok(answers) => {
                self.recorder.execution(&execution);
                let finished = clients.into_iter().zip(answers).map(|(client, answer)| Finished {
                    client,
                    answer,
                    run: Some(Run { execution, taken }),
                });
                self.delivery.finish(finished.collect::<Vec<_>>(), &self.recorder);
            }
            Err(error) => {
                let (model, requests_in_batch) = (&self.metadata.name, requests.len());
                let error = error.report();
                tracing::debug!(
                    model,
                    requests_in_batch,
                    error,
                    "a batch failed; its requests are run by themselves"
                );
                if is_called {
                    self.recorder.execution(&execution);
                }
                self.quickness.doubt();
                for (request, client) in requests.into_iter().zip(clients) {
                    let job = self.still_wanted(Job { request, client }, Instant::now());
                    job.into_iter().for_each(|job| self.run_one(slot, job, taken));
                }
            }
        }
    }

    /// The answer to each request of a batch.
    fn run_rows(
        &self,
        slot: usize,
        batch: &Joined<'_>,
        joined: InferRequest,
        execution: &mut Execution,
        taken: Instant,
    ) -> Result<Vec<Answer>, ServiceError> {
        let Joined {
            requests,
            rows,
            cancel,
            lease,
        } = *batch;
        let wanted = joined.outputs.clone();
        let start = Instant::now();
        execution.input = start - taken.min(start);
        let inputs = Inputs::of(&joined);
        let parts = batch::parts(requests, rows);
        let given = self.call(slot, joined, &parts, &inputs, cancel, lease);
        let called = Instant::now();
        execution.infer = called - start;
        self.quickness.note(execution.rows, execution.infer);
        let Outputs { outputs, failed, .. } = given?;
        let mut failed: BTreeMap<usize, ServiceError> = failed.into_iter().collect();
        if (0..requests.len()).all(|part| failed.contains_key(&part)) {
            return Ok(failed.into_values().take(requests.len()).map(Err).collect());
        }
        let outputs = self.metadata.pick_outputs(&wanted, outputs)?;
        if !self.policy.is_configured()
            && let Err(error) = batch::check_rows(&outputs, execution.rows)
        {
            self.stop_joining(&error);
            return Err(error);
        }
        let answers = batch::split(outputs, requests, rows)?;
        execution.output = called.elapsed();
        let answers = answers.into_iter().enumerate();
        Ok(answers
            .map(|(part, outputs)| failed.remove(&part).map_or(Ok(outputs), Err))
            .collect())
    }

    /// The model says that its rows are independent, and they are not.
    fn stop_joining(&self, error: &ServiceError) {
        let (model, error) = (&self.metadata.name, error.message());
        tracing::error!(
            model,
            error,
            "a batch's outputs have other rows than its inputs; requests are not joined any more"
        );
        self.queue.stop_joining();
    }

    /// Calls the model for one response, and charges the outputs. `parts` are the requests that were joined into this one.
    fn call(
        &self,
        slot: usize,
        request: InferRequest,
        parts: &[RequestPart],
        inputs: &Inputs,
        cancel: &CancelToken,
        lease: &Lease,
    ) -> Result<Outputs, ServiceError> {
        let others = self.others.for_run(&self.metadata.name, cancel, lease);
        let call = Call::new(request, cancel).with_others(&others).with_parts(parts);
        let mut given = match self.guarded(slot, cancel, || self.model.run(call))? {
            Outcome::Outputs(outputs) => outputs,
            other => Outputs::new(other.into_outputs()?),
        };
        given.outputs = self.charged(lease, inputs, given.outputs)?;
        Ok(given)
    }

    fn charged(&self, lease: &Lease, inputs: &Inputs, outputs: Vec<InferOutput>) -> Answer {
        charging::charge_outputs(lease, inputs, self.capabilities.lends_memory, outputs)
    }

    /// Is in the model for as long as `run` takes; a panic becomes an error.
    fn guarded<T>(
        &self,
        slot: usize,
        cancel: &CancelToken,
        run: impl FnOnce() -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        self.hang_watch.begin(slot, cancel);
        let given = self.caught(run);
        self.left(slot);
        given
    }

    /// A panic of the model becomes an error.
    fn caught<T>(&self, run: impl FnOnce() -> Result<T, ServiceError>) -> Result<T, ServiceError> {
        let given = catch_unwind(AssertUnwindSafe(run));
        given.unwrap_or_else(|panic| {
            let (model, cause) = (&self.metadata.name, panic_message(&*panic));
            tracing::error!(model, cause, "a model panicked");
            Err(ServiceError::internal(
                "it panicked; this request is lost, the next one will be tried",
            ))
        })
    }

    /// An instance is out of the model.
    fn left(&self, slot: usize) {
        if self.hang_watch.end(slot) {
            let model = &self.metadata.name;
            tracing::warn!(model, slot, "a thread that counted as lost is back");
        }
    }
}

/// Requests that are run together.
struct Joined<'b> {
    requests: &'b [InferRequest],
    rows: &'b [u64],
    cancel: &'b CancelToken,
    lease: &'b Lease,
}

fn expired(expiry: Expiry) -> ServiceError {
    let message = match expiry {
        Expiry::Deadline => "the deadline passed before the model could run",
        Expiry::Timeout => "it waited longer than its queue allows",
    };
    ServiceError::new(ErrorCode::DeadlineExceeded, message)
}

/// A panic's message, for the log.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}
