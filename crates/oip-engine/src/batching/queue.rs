//! The queue between the callers of a model and those who run it: its threads, and callers that run what is quick themselves.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

// Tests compile this file a second time, where `super::sync` is not the system's (`queue_interleavings.rs`).
use super::{
    scheduler::{Ask, Expiry, InPlace, Next, Scheduler, Ticket},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// The [`Scheduler`] between the callers of a model and its instances.
///
/// Pushing never waits: a full queue gives the item back. Taking waits until there is something to do or the queue is
/// closed and empty.
///
/// An instance is a slot; a thread that runs a batch holds one, so no more batches run at a time than there are instances. A slot is
/// taken by one of the model's threads ([`Queue::take`]) or by a caller ([`Queue::take_in_place`]). A caller may leave the rest of
/// a run, an `R`, to a thread, with its slot ([`Queue::hand_over`]).
///
/// Threads exist on demand: `start` is called when work waits, a slot is free and no thread is idle. A thread that was idle for
/// `max_idle` ends, so a model without requests holds no threads.
pub(crate) struct Queue<T, R> {
    state: Mutex<State<T, R>>,
    changed: Condvar,
    max_idle: Option<Duration>,
    /// Starts a thread that calls [`Queue::begin`] and then [`Queue::take`], or calls [`Queue::not_started`].
    start: Box<dyn Fn(&Self) + Send + Sync>,
    /// The current time.
    now: fn() -> Instant,
}

struct State<T, R> {
    scheduler: Scheduler<T>,
    is_closed: bool,
    /// Runs that callers have left to the threads, and their slots.
    handed_over: VecDeque<(usize, R)>,
    /// Callers that have a slot, and may still leave a run to the threads.
    in_place: usize,
    /// Slots that nobody runs a batch in.
    free: Vec<usize>,
    /// The number of slots, free or not.
    slots: usize,
    /// Threads that take work from this queue, including those that `start` was called for.
    threads: usize,
    /// Threads that `start` was called for and that have not begun.
    starting: usize,
    /// Whether something may wait whose caller will not come for it, so that a thread must.
    needs_thread: bool,
    /// Threads that wait for work.
    idle: usize,
    /// Those of them that were woken and are not back yet: whatever has come by then, they find.
    woken: usize,
}

impl<T, R> State<T, R> {
    /// Decides how one more thread comes for the work that waits. The caller passes it to [`Queue::wake`] without the lock.
    fn wake(&mut self) -> Wake {
        let is_needed = self.needs_thread && self.scheduler.len() > 0 || !self.handed_over.is_empty();
        let places = self.free.len() + self.handed_over.len();
        if !is_needed || places <= self.woken + self.starting {
            Wake::Nobody
        } else if self.idle > self.woken {
            self.woken += 1;
            Wake::Idle
        } else if self.threads < self.slots {
            self.threads += 1;
            self.starting += 1;
            Wake::New
        } else {
            // All threads are busy without a slot, and look here when they are done.
            Wake::Nobody
        }
    }

    /// Notes that items were taken out.
    fn took(&mut self) {
        self.needs_thread &= self.scheduler.len() > 0;
    }
}

/// Which thread comes for work that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    Nobody,
    Idle,
    New,
}

/// Why an item was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    /// As many items wait as may.
    Full,
    /// No item is taken any more.
    Closed,
}

/// Which thread runs an item that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// A thread, which was woken if that was necessary.
    Thread,
    /// The caller, by [`Queue::take_in_place`], unless somebody is quicker. No thread was woken for it.
    Caller,
}

/// Work for a thread.
#[derive(Debug)]
pub(crate) struct Work<T, R> {
    /// To be run together; there may be none.
    pub(crate) batch: Vec<T>,
    /// To be brought to its end: what a caller has left. Then there is no batch.
    pub(crate) rest: Option<R>,
    /// To be told that their time is over.
    pub(crate) expired: Vec<(T, Expiry)>,
    /// The instance that runs it, to be given back when that is done; none if there is nothing to run.
    pub(crate) slot: Option<usize>,
}

impl<T, R> Queue<T, R> {
    /// Creates a queue for `instances` slots. `start` starts a thread; threads end after `max_idle` without work, or never.
    pub(crate) fn new(
        scheduler: Scheduler<T>,
        instances: usize,
        max_idle: Option<Duration>,
        now: fn() -> Instant,
        start: impl Fn(&Self) + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            scheduler,
            is_closed: false,
            handed_over: VecDeque::new(),
            in_place: 0,
            free: (0..instances).rev().collect(),
            slots: instances,
            threads: 0,
            starting: 0,
            needs_thread: false,
            idle: 0,
            woken: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            max_idle,
            start: Box::new(start),
            now,
        }
    }

    /// Puts an item, which `item` makes from its ticket, into the queue. A caller that would run it itself may do that if an
    /// instance is free and nobody waits for a thread.
    pub(crate) fn push(
        &self,
        ask: Ask,
        wanted: Runner,
        item: impl FnOnce(Ticket) -> T,
    ) -> Result<(Ticket, Runner), PushError> {
        let now = (self.now)();
        let mut state = self.lock();
        if state.is_closed {
            return Err(PushError::Closed);
        }
        let pushed = state.scheduler.push(ask, now, item);
        let ticket = pushed.ok_or(PushError::Full)?;
        if wanted == Runner::Caller && !state.needs_thread && !state.free.is_empty() {
            return Ok((ticket, Runner::Caller));
        }
        self.leave_to_threads(state);
        Ok((ticket, Runner::Thread))
    }

    /// Lets the caller of an item run it at once, by itself, without its entering the queue: gives its ticket, and the instance to run it
    /// in until [`Queue::done_in_place`]. `enter` is told the ticket before any other item gets one. `None` if something
    /// waits or no instance is free: then it is to be pushed.
    pub(crate) fn pass(
        &self,
        ask: &Ask,
        now: Instant,
        enter: impl FnOnce(Ticket),
    ) -> Option<(Ticket, usize)> {
        let mut state = self.lock();
        if state.is_closed || state.needs_thread {
            return None;
        }
        let slot = *state.free.last()?;
        let ticket = state.scheduler.pass(ask, now)?;
        state.free.pop();
        state.in_place += 1;
        enter(ticket);
        Some((ticket, slot))
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Idle => self.changed.notify_one(),
            Wake::New => (self.start)(self),
        }
    }

    /// Counts a thread that was not started by the queue.
    #[cfg(test)]
    #[allow(dead_code, reason = "tests call that of their copy of this file")]
    pub(crate) fn enlist(&self) {
        self.lock().threads += 1;
    }

    /// Counts a thread that `start` was called for as begun.
    pub(crate) fn begin(&self) {
        self.lock().starting -= 1;
    }

    /// Notes that a thread could not be started. Returns whether no thread is left, so that what waits must be refused; runs that
    /// callers left to threads are dropped then.
    pub(crate) fn not_started(&self) -> bool {
        let mut state = self.lock();
        state.starting -= 1;
        state.threads -= 1;
        if state.threads > 0 {
            return false;
        }
        let (slots, dropped): (Vec<usize>, Vec<R>) = state.handed_over.drain(..).unzip();
        state.free.extend(slots);
        drop(state);
        drop(dropped);
        true
    }

    /// Removes a thread from those that take work, as it goes on with a request whose slot it gives back.
    pub(crate) fn leave_thread(&self) {
        self.lock().threads -= 1;
    }

    /// Counts a thread that left as one that takes work again, if there are fewer than the slots and `spare`.
    pub(crate) fn return_thread(&self, spare: usize) -> bool {
        let mut state = self.lock();
        let is_needed = state.threads < state.slots + spare;
        state.threads += usize::from(is_needed);
        is_needed
    }

    /// Whether the queue is closed and nothing waits or runs any more.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_closed
            && state.threads == 0
            && state.in_place == 0
            && state.handed_over.is_empty()
            && state.scheduler.len() == 0
    }

    /// Waits for the next work; `None` once the queue is closed and empty, or the thread was idle for long enough: then it ends.
    /// `done` is the slot of the last work.
    pub(crate) fn take(&self, done: Option<usize>) -> Option<Work<T, R>> {
        let mut state = self.lock();
        state.free.extend(done);
        let mut idle_since = None;
        loop {
            if let Some((slot, rest)) = state.handed_over.pop_front() {
                let wake = state.wake();
                drop(state);
                self.wake(wake);
                return Some(Work {
                    batch: Vec::new(),
                    rest: Some(rest),
                    expired: Vec::new(),
                    slot: Some(slot),
                });
            }
            let now = (self.now)();
            let expired = state.scheduler.expire(now);
            let next = match state.free.is_empty() {
                // Callers have all instances; the one that is done first wakes a thread.
                true => Next::Idle,
                false => state.scheduler.next(now),
            };
            let (batch, until) = match next {
                Next::Run(batch) => (batch, None),
                Next::WaitUntil(until) => (Vec::new(), Some(until)),
                Next::Idle => (Vec::new(), None),
            };
            state.took();
            if !batch.is_empty() || !expired.is_empty() {
                let slot = if batch.is_empty() { None } else { state.free.pop() };
                // Other waiting items may be ready too, and some thread must watch the time for the rest.
                let wake = state.wake();
                drop(state);
                self.wake(wake);
                return Some(Work {
                    batch,
                    rest: None,
                    expired,
                    slot,
                });
            }
            if until.is_none() && state.is_closed && state.scheduler.len() == 0 && state.in_place == 0 {
                state.threads -= 1;
                drop(state);
                // Others may wait for an instance, for which there is nothing left to do.
                self.changed.notify_all();
                return None;
            }
            if until.is_none() && idle_since.is_some_and(|since| self.is_idle_too_long(since, now)) {
                state.threads -= 1;
                return None;
            }
            // The end of this wait. Only a wait for work counts as idle, not one for the time of an item.
            let until = match (until, self.max_idle) {
                (Some(until), _) => {
                    idle_since = None;
                    Some(until)
                }
                (None, Some(max_idle)) => Some(*idle_since.get_or_insert(now) + max_idle),
                (None, None) => None,
            };
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
            // A thread woken by its timeout may take the item first; then the thread that was notified finds nothing, or other work.
            state.woken = state.woken.saturating_sub(1);
        }
    }

    fn is_idle_too_long(&self, since: Instant, now: Instant) -> bool {
        self.max_idle
            .is_some_and(|max_idle| now.saturating_duration_since(since) >= max_idle)
    }

    /// Takes a waiting item for its caller, to run on the caller's thread; `None` if it has left the queue, or somebody
    /// else will run it. `is_quick` is asked about the rows of the next batch.
    pub(crate) fn take_in_place(
        &self,
        ticket: Ticket,
        is_quick: impl FnOnce(u64) -> bool,
    ) -> Option<Work<T, R>> {
        let now = (self.now)();
        let mut state = self.lock();
        let expired = state.scheduler.expire(now);
        let next = match (state.scheduler.holds(ticket), state.free.last()) {
            (false, _) => InPlace::Idle,
            (true, None) => InPlace::Leave,
            (true, Some(_)) => state.scheduler.next_in_place(now, is_quick),
        };
        state.took();
        let (batch, slot) = match next {
            InPlace::Run(batch) => {
                state.in_place += 1;
                (batch, state.free.pop())
            }
            InPlace::Idle => (Vec::new(), None),
            InPlace::Leave => {
                self.leave_to_threads(state);
                (Vec::new(), None)
            }
        };
        let is_something = !batch.is_empty() || !expired.is_empty();
        is_something.then_some(Work {
            batch,
            rest: None,
            expired,
            slot,
        })
    }

    /// A caller leaves the rest of what it took to a thread, together with the slot.
    pub(crate) fn hand_over(&self, slot: usize, rest: R) {
        let mut state = self.lock();
        state.in_place -= 1;
        state.handed_over.push_back((slot, rest));
        self.wake_or_end(state);
    }

    /// A caller is done with what it took.
    pub(crate) fn done_in_place(&self, slot: usize) {
        let mut state = self.lock();
        state.in_place -= 1;
        self.give_back(state, slot);
    }

    /// A thread goes on with what it took, without its instance.
    pub(crate) fn free(&self, slot: usize) {
        self.give_back(self.lock(), slot);
    }

    fn give_back(&self, mut state: MutexGuard<'_, State<T, R>>, slot: usize) {
        state.free.push(slot);
        self.wake_or_end(state);
    }

    /// Wakes a thread for what waits; all of them if the queue is closed, since they may have nothing left to wait for.
    fn wake_or_end(&self, mut state: MutexGuard<'_, State<T, R>>) {
        let (wake, is_closed) = (state.wake(), state.is_closed);
        drop(state);
        if is_closed {
            self.changed.notify_all();
        }
        self.wake(wake);
    }

    /// A caller does not come for its item any more, which may still wait.
    pub(crate) fn leave(&self) {
        self.leave_to_threads(self.lock());
    }

    fn leave_to_threads(&self, mut state: MutexGuard<'_, State<T, R>>) {
        state.needs_thread = state.scheduler.len() > 0;
        let wake = state.wake();
        drop(state);
        self.wake(wake);
    }

    /// Takes an item out that nobody waits for any more; `None` when it has left already.
    pub(crate) fn cancel(&self, ticket: Ticket) -> Option<T> {
        let mut state = self.lock();
        let item = state.scheduler.cancel(ticket);
        state.took();
        item
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
        state.needs_thread = true;
        state.scheduler.flush();
        self.wake_or_end(state);
    }

    /// Takes all items out.
    pub(crate) fn drain(&self) -> Vec<T> {
        self.lock().scheduler.drain()
    }

    /// Nothing panics while it holds the lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
