//! Runs a model: takes a batch from the queue, runs it, and sends each request the response with its rows.
//! Runs on the model's threads or on the thread of a caller.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use oip_model::{Call, CancelToken, Outcome, Outputs, RequestPart};
use oip_resources::Lease;
use oip_types::{ErrorCode, InferOutput, InferRequest, ServiceError};

use crate::{
    batching::{
        batch,
        queue::Work,
        scheduler::{Expiry, Ticket},
    },
    infer_result::InferResult,
    run::{
        charging::{self, Inputs},
        client::Client,
        delivery::{FinishedRequest, Run},
        in_place::{self, InPlace},
        instances::{DirectRequest, InPlaceSlot, SharedModel},
        job::{Job, ModelCall, Rest},
        several::{Parts, Sink, SinkEnd},
        threads::{MOST_SPARE, ThreadState},
    },
    statistics::Execution,
};

impl SharedModel {
    /// Runs a thread of the model. Panics in the model are caught where it is called. Any other panic, such
    /// as one while freeing a model's output, loses the requests that this thread holds: their callers get an
    /// error, and the thread continues.
    pub(crate) fn serve(self: &Arc<Self>) {
        let held = ThreadState::default();
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
            // Avoids a busy loop if the thread panics repeatedly.
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs work from the queue until `Queue::take` ends the thread. A thread that has run a request without
    /// an instance also ends if enough other threads are left.
    fn serve_until_closed(self: &Arc<Self>, held: &ThreadState) {
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

    /// Lets a thread that ran without an instance take work again. Returns whether the thread is still
    /// needed.
    fn come_back(&self) -> bool {
        self.threads.come_back();
        self.queue.return_thread(MOST_SPARE)
    }

    /// Runs requests that may get any number of responses.
    fn run_decoupled(self: &Arc<Self>, work: Work<Job, Rest>, held: &ThreadState) {
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
                // Decoupled models are not batched, so there is exactly one request, which has an instance.
                (None, None) => drop(job),
            }
        }
    }

    /// Frees a thread's instance while the thread continues with its request.
    fn free_instance(self: &Arc<Self>, held: &ThreadState) {
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

    /// Runs queued batches on the caller's thread until its request has left the queue. Afterwards its
    /// response is ready, or another thread runs the request.
    pub(crate) fn run_in_place(&self, in_place: &InPlace, ticket: Ticket) {
        /// The maximum number of batches that a caller runs before its own request.
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
            let held = work.slot.map(|slot| InPlaceSlot { shared: self, slot });
            if !self.capabilities.elsewhere {
                self.run(work);
            } else if let (Some(rest), Some(held)) = (self.begin(work, in_place.limit()), held) {
                held.hand_over(rest);
            }
        }
        // The caller has run as many batches as it may. If its own request is still queued, a thread runs the
        // request.
        self.queue.leave();
    }

    /// Runs a request that bypassed the queue.
    pub(crate) fn run_passed(&self, passed: DirectRequest<'_>) {
        let DirectRequest { job, room } = passed;
        self.company.note(1);
        // The request did not wait, so the time in the queue is 0.
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
                let ModelCall { client, inputs, .. } = &called;
                let (cancel, lease) = (&client.cancel, &client.lease);
                let others = self.others.for_run(&self.metadata.name, cancel, lease);
                let given = self.guarded(slot, cancel, || rest.finish(cancel, &others));
                let given = given.and_then(|outputs| self.charged(lease, inputs, outputs));
                self.finish_one(called, given);
            }
        }
    }

    /// Starts a run in another process from the caller's thread. Returns the unfinished run if it takes
    /// longer than `patience`.
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
        let called = ModelCall {
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

    /// Returns the request, unless its client has disconnected or its deadline has passed. In these cases,
    /// refuses the request.
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

    /// Runs a single request without copying its inputs.
    fn run_one(&self, slot: usize, job: Job, taken: Instant) {
        let Some(Job { request, client }) = self.still_wanted(job, taken) else {
            return;
        };
        let _strings = match charging::charge_strings(&client.lease, &request) {
            Ok(strings) => strings,
            Err(error) => return self.refuse(Job { request, client }, error),
        };
        let called = ModelCall {
            wanted: request.outputs.clone(),
            inputs: Inputs::of(&request),
            start: Instant::now(),
            taken,
            client,
        };
        let ModelCall { client, inputs, .. } = &called;
        let given = self.call(slot, request, &[], inputs, &client.cancel, &client.lease);
        let given = given.and_then(|given| Outcome::from(given).into_outputs());
        self.finish_one(called, given);
    }

    /// Sends the response to a request that ran alone.
    fn finish_one(&self, one: ModelCall, given: InferResult) {
        let called = Instant::now();
        let ModelCall {
            client,
            wanted,
            start,
            taken,
            ..
        } = one;
        let answer = given.and_then(|outputs| self.metadata.pick_outputs(&wanted, outputs));
        // If batching is not configured, a request may exceed the maximum batch size.
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
        let finished = FinishedRequest {
            client,
            answer,
            run: Some(Run { execution, taken }),
        };
        self.delivery.finish([finished], &self.recorder);
    }

    /// Runs a request that may get any number of responses.
    fn run_several(
        self: &Arc<Self>,
        held: &ThreadState,
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
        // The time during which the client blocked the model does not count.
        let execution = Execution {
            rows: client.rows,
            input: start - taken.min(start),
            infer: start.elapsed().saturating_sub(end.blocked),
            output: Duration::ZERO,
        };
        self.recorder.execution(&execution);
        let finished = FinishedRequest {
            answer: end.result(given, &client.cancel).map(|()| Vec::new()),
            run: Some(Run { execution, taken }),
            client,
        };
        self.delivery.finish([finished], &self.recorder);
    }

    /// Runs requests as one batch. If the batch fails, runs each request once alone, so that only the bad
    /// ones fail.
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
        // All requests of the batch share its memory.
        let Some(lease) = clients.first().map(|client| client.lease.for_shared_work()) else {
            return;
        };
        let shared = JoinedBatch {
            requests: &requests,
            rows: &rows,
            cancel: &cancel,
            lease: &lease,
        };
        let shared_inputs = &self.policy.independent_rows().shared_inputs;
        let joined = charging::join(&lease, &requests, shared_inputs)
            .and_then(|joined| Ok((charging::charge_strings(&lease, &joined)?, joined)));
        // If there is no memory for the batch, the model is not called.
        let is_called = joined.is_ok();
        let answers =
            joined.and_then(|(_strings, joined)| self.run_rows(slot, &shared, joined, &mut execution, taken));
        match answers {
            Ok(answers) => {
                self.recorder.execution(&execution);
                let finished = clients
                    .into_iter()
                    .zip(answers)
                    .map(|(client, answer)| FinishedRequest {
                        client,
                        answer,
                        run: Some(Run { execution, taken }),
                    });
                self.delivery.finish(finished.collect::<Vec<_>>(), &self.recorder);
            }
            Err(error) => {
                if is_called {
                    self.recorder.execution(&execution);
                }
                let jobs = requests.into_iter().zip(clients);
                let jobs = jobs.map(|(request, client)| Job { request, client });
                self.run_each(slot, jobs, taken, &error);
            }
        }
    }

    /// Runs each request of a batch that failed with `error`.
    fn run_each(
        &self,
        slot: usize,
        jobs: impl ExactSizeIterator<Item = Job>,
        taken: Instant,
        error: &ServiceError,
    ) {
        let (model, requests_in_batch) = (&self.metadata.name, jobs.len());
        let error = error.report();
        tracing::debug!(
            model,
            requests_in_batch,
            error,
            "a batch failed; its requests are run one by one"
        );
        self.quickness.doubt();
        for job in jobs {
            let job = self.still_wanted(job, Instant::now());
            job.into_iter().for_each(|job| self.run_one(slot, job, taken));
        }
    }

    /// Returns the response to each request of a batch.
    fn run_rows(
        &self,
        slot: usize,
        batch: &JoinedBatch<'_>,
        joined: InferRequest,
        execution: &mut Execution,
        taken: Instant,
    ) -> Result<Vec<InferResult>, ServiceError> {
        let JoinedBatch {
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

    /// Stops batching for a model that declares its rows independent although they are not.
    fn stop_joining(&self, error: &ServiceError) {
        let (model, error) = (&self.metadata.name, error.message());
        tracing::error!(
            model,
            error,
            "a batch's outputs have other rows than its inputs; requests are not joined any more"
        );
        self.queue.stop_joining();
    }

    /// Calls the model and counts its outputs toward the memory budget.
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

    fn charged(&self, lease: &Lease, inputs: &Inputs, outputs: Vec<InferOutput>) -> InferResult {
        charging::charge_outputs(lease, inputs, self.capabilities.lends_memory, outputs)
    }

    /// Calls `run`, during which the instance counts as being in the model. A panic becomes an error.
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

    /// Calls `run`. A panic of the model becomes an error.
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

    /// Records that an instance has left the model.
    fn left(&self, slot: usize) {
        if self.hang_watch.end(slot) {
            let model = &self.metadata.name;
            tracing::warn!(model, slot, "a thread that was considered lost is running again");
        }
    }
}

/// Requests that run as one batch, with the number of rows of each request.
struct JoinedBatch<'b> {
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

/// Returns the message of a panic, for the log.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}
