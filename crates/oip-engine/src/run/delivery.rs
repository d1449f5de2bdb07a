//! Sends responses to clients, and counts requests as delivered or not.

use std::{collections::VecDeque, time::Instant};

use oip_resources::{Phase, RequestNotes, StageKind};
use parking_lot::Mutex;

use crate::{
    batching::scheduler::Turnstile,
    infer_result::{InferResult, given_up},
    run::client::Client,
    statistics::{Ending, Execution, Recorder},
};

/// A finished request and its response.
pub(crate) struct FinishedRequest {
    pub(crate) client: Client,
    pub(crate) answer: InferResult,
    /// Run that computed the response; `None` if the model was not called for this request.
    pub(crate) run: Option<Run>,
}

/// The run that computed the response.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) execution: Execution,
    /// Time at which the request left the queue.
    pub(crate) taken: Instant,
}

impl Run {
    /// Records the stages of the run in `notes`.
    fn note_stages(&self, client: &Client, notes: &RequestNotes) {
        let Execution {
            rows,
            input,
            infer,
            output,
        } = self.execution;
        let joined = self.taken + input;
        let answered = joined + infer;
        let queued = client.queued.min(self.taken);
        for (kind, start, end) in [
            (StageKind::Phase(Phase::Queue), queued, self.taken),
            (StageKind::Batch, self.taken, joined),
            (StageKind::Run { rows }, joined, answered),
            (StageKind::Split, answered, answered + output),
        ] {
            notes.end_stage(kind, client.step, start, end);
        }
    }
}

impl FinishedRequest {
    /// Returns how the request ends if its response is sent now.
    fn ending(&self) -> Ending {
        let client = &self.client;
        let failure = match &self.answer {
            Err(error) => Some(error.code()),
            Ok(_) if client.answer.is_canceled() && !client.has_last_answer() => {
                Some(given_up(&client.cancel))
            }
            Ok(_) => None,
        };
        let execution = self.run.map(|run| run.execution);
        let queue = self
            .run
            .map(|run| run.taken.saturating_duration_since(client.queued))
            .unwrap_or_default();
        if let (Some(notes), Some(run)) = (client.lease.notes(), self.run) {
            notes.add(Phase::Queue, queue);
            let Execution {
                input, infer, output, ..
            } = run.execution;
            notes.add(Phase::Run, input + infer + output);
            if notes.is_traced() {
                run.note_stages(client, notes);
            }
        }
        Ending {
            execution,
            rows: client.rows,
            queue,
            total: client.received.elapsed(),
            failure,
        }
    }
}

/// Sends responses. If the model's configuration requires it, sends them in the order of the requests.
pub(crate) struct Delivery(Option<Mutex<InOrder>>);

struct InOrder {
    line: Turnstile<FinishedRequest>,
    /// Responses to send.
    leaving: VecDeque<FinishedRequest>,
    /// Whether a thread is sending.
    is_sending: bool,
}

impl Delivery {
    pub(crate) fn new(preserves_order: bool) -> Self {
        Self(preserves_order.then(|| {
            Mutex::new(InOrder {
                line: Turnstile::new(),
                leaving: VecDeque::new(),
                is_sending: false,
            })
        }))
    }

    /// Adds the request with the sequence number `arrival`, whose response is not ready yet.
    pub(crate) fn enter(&self, arrival: u64) {
        if let Some(order) = &self.0 {
            order.lock().line.enter(arrival);
        }
    }

    /// Sends the responses that are ready. If a client has disconnected, its request counts as failed and the
    /// response is dropped.
    pub(crate) fn finish(
        &self,
        finished: impl AsRef<[FinishedRequest]> + IntoIterator<Item = FinishedRequest>,
        recorder: &Recorder,
    ) {
        match &self.0 {
            None => hand_over(finished, recorder),
            Some(order) => send(order, recorder, |line| {
                let finished = finished.into_iter();
                finished
                    .flat_map(|finished| line.finish(finished.client.arrival, finished))
                    .collect()
            }),
        }
    }

    /// Removes a request whose client disconnected. Later requests do not wait for its response, which may
    /// never come.
    pub(crate) fn leave(&self, arrival: u64, recorder: &Recorder) {
        if let Some(order) = &self.0 {
            send(order, recorder, |line| line.leave(arrival));
        }
    }
}

/// Sends the responses that `step` releases. Only one thread sends at a time, to keep the order. The lock is
/// released while sending, since sending wakes code outside the engine.
fn send(
    order: &Mutex<InOrder>,
    recorder: &Recorder,
    step: impl FnOnce(&mut Turnstile<FinishedRequest>) -> Vec<FinishedRequest>,
) {
    let mut state = order.lock();
    let released = step(&mut state.line);
    state.leaving.extend(released);
    if state.is_sending {
        return;
    }
    state.is_sending = true;
    while let Some(finished) = state.leaving.pop_front() {
        drop(state);
        hand_over([finished], recorder);
        state = order.lock();
    }
    state.is_sending = false;
}

/// Counts responses, then sends them. The order matters: a client may read the statistics as soon as it has
/// its response.
fn hand_over(
    finished: impl AsRef<[FinishedRequest]> + IntoIterator<Item = FinishedRequest>,
    recorder: &Recorder,
) {
    recorder.endings(finished.as_ref().iter().map(FinishedRequest::ending));
    for FinishedRequest { client, answer, .. } in finished {
        let _ = client.answer.send(answer);
    }
}
