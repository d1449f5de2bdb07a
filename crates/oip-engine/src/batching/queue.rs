//! The queue between the callers of a model and its threads.

use std::time::Instant;

// Tests compile this file a second time, where `super::sync` is not the system's (`queue_interleavings.rs`).
use super::{
    scheduler::{Ask, Expiry, Next, Scheduler, Ticket},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// The [`Scheduler`] between the callers of a model and its threads.
///
/// Pushing never waits: a full queue gives the item back. Taking waits until there is something to do or the queue is
/// closed and empty.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// What time it is.
    now: fn() -> Instant,
}

struct State<T> {
    scheduler: Scheduler<T>,
    is_closed: bool,
    /// Threads that wait for work.
    idle: usize,
    /// Those of them that were woken and are not back yet: whatever has come by then, they find.
    woken: usize,
}

impl<T> State<T> {
    /// Whether one more thread is to be woken, who wakes it without the lock.
    fn wakes_one(&mut self) -> bool {
        let is_one_left = self.idle > self.woken;
        self.woken += usize::from(is_one_left);
        is_one_left
    }
}

/// Why an item was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    /// As many items wait as may.
    Full,
    /// No item is taken any more.
    Closed,
}

/// What a thread is to do.
#[derive(Debug)]
pub(crate) struct Work<T> {
    /// To be run together; there may be none.
    pub(crate) batch: Vec<T>,
    /// To be told that their time is over.
    pub(crate) expired: Vec<(T, Expiry)>,
}

impl<T> Queue<T> {
    pub(crate) fn new(scheduler: Scheduler<T>, now: fn() -> Instant) -> Self {
        let state = State {
            scheduler,
            is_closed: false,
            idle: 0,
            woken: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            now,
        }
    }

    /// Puts an item, which `item` makes from its ticket, into the queue.
    pub(crate) fn push(&self, ask: Ask, item: impl FnOnce(Ticket) -> T) -> Result<Ticket, PushError> {
        let now = (self.now)();
        let mut state = self.lock();
        if state.is_closed {
            return Err(PushError::Closed);
        }
        let pushed = state.scheduler.push(ask, now, item);
        let ticket = pushed.ok_or(PushError::Full)?;
        let wakes_one = state.wakes_one();
        drop(state);
        if wakes_one {
            self.changed.notify_one();
        }
        Ok(ticket)
    }

    /// What to do next; `None` once the queue is closed and empty.
    pub(crate) fn take(&self) -> Option<Work<T>> {
        let mut state = self.lock();
        loop {
            let now = (self.now)();
            let expired = state.scheduler.expire(now);
            let next = state.scheduler.next(now);
            let (batch, until) = match next {
                Next::Run(batch) => (batch, None),
                Next::WaitUntil(until) => (Vec::new(), Some(until)),
                Next::Idle => (Vec::new(), None),
            };
            if !batch.is_empty() || !expired.is_empty() {
                // What still waits may be ready too, and somebody must watch the time for what is not.
                let wakes_one = state.scheduler.len() > 0 && state.wakes_one();
                drop(state);
                if wakes_one {
                    self.changed.notify_one();
                }
                return Some(Work { batch, expired });
            }
            if until.is_none() && state.is_closed {
                return None;
            }
            state.idle += 1;
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let time = until.saturating_duration_since(now);
                    let waited = self.changed.wait_timeout(state, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.idle -= 1;
            // Also by one that its time has woken, and then the one that was meant finds nothing, or more work.
            state.woken = state.woken.saturating_sub(1);
        }
    }

    /// Takes an item out that nobody waits for any more; `None` when it has left already.
    pub(crate) fn cancel(&self, ticket: Ticket) -> Option<T> {
        self.lock().scheduler.cancel(ticket)
    }

    /// How many items wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().scheduler.len()
    }

    /// From now on every item runs by itself.
    pub(crate) fn stop_joining(&self) {
        self.lock().scheduler.stop_joining();
        self.changed.notify_all();
    }

    /// Whether items are joined (still).
    pub(crate) fn is_joining(&self) -> bool {
        self.lock().scheduler.is_joining()
    }

    /// Takes no more items; those that wait are still given out, and at once.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.scheduler.flush();
        drop(state);
        self.changed.notify_all();
    }

    /// Takes all items out.
    pub(crate) fn drain(&self) -> Vec<T> {
        self.lock().scheduler.drain()
    }

    /// Nothing panics while it holds the lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
