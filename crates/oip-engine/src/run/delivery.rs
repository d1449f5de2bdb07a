use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures_channel::oneshot;
use oip_types::{InferOutput, ServiceError};

use crate::batching::scheduler::Turnstile;

/// What comes back from a thread: the outputs of one request.
pub(crate) type Answer = Result<Vec<InferOutput>, ServiceError>;

/// Where answers leave to their clients; in the order of requests, if the model's configuration demands that.
pub(crate) struct Delivery(Option<Mutex<InOrder>>);

struct InOrder {
    line: Turnstile<Ready>,
    /// Those that may leave.
    leaving: VecDeque<Ready>,
    /// Whether a thread sends them already.
    is_sending: bool,
}

type Ready = (oneshot::Sender<Answer>, Answer);

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

    /// A request has come.
    pub(crate) fn enter(&self, arrival: u64) {
        if let Some(order) = &self.0 {
            lock(order).line.enter(arrival);
        }
    }

    /// Its answer is ready. Nobody may wait for it any more, and then nobody misses it.
    pub(crate) fn finish(&self, arrival: u64, client: oneshot::Sender<Answer>, answer: Answer) {
        match &self.0 {
            None => drop(client.send(answer)),
            Some(order) => send(order, |line| line.finish(arrival, (client, answer))),
        }
    }

    /// It will not be answered.
    pub(crate) fn leave(&self, arrival: u64) {
        if let Some(order) = &self.0 {
            send(order, |line| line.leave(arrival));
        }
    }
}

/// Sends what `step` releases. One thread at a time does, so that the order holds, and without the lock, since sending
/// wakes code that is not ours.
fn send(order: &Mutex<InOrder>, step: impl FnOnce(&mut Turnstile<Ready>) -> Vec<Ready>) {
    let mut state = lock(order);
    let released = step(&mut state.line);
    state.leaving.extend(released);
    if state.is_sending {
        return;
    }
    state.is_sending = true;
    while let Some((client, answer)) = state.leaving.pop_front() {
        drop(state);
        let _ = client.send(answer);
        state = lock(order);
    }
    state.is_sending = false;
}

/// Nothing panics while it holds the lock, so a poisoned one is as good as any.
fn lock(order: &Mutex<InOrder>) -> MutexGuard<'_, InOrder> {
    order.lock().unwrap_or_else(PoisonError::into_inner)
}
