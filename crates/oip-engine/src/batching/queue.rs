//! The queue between a model's callers and its threads. Quick requests run on the caller's own thread.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

// Tests compile this file again with another `super::sync` (`queue_interleavings.rs`).
use super::{
    scheduler::{Ask, Expiry, InPlace, Next, Scheduler, Ticket},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// The [`Scheduler`] behind a lock, shared by the callers of a model and its instances.
///
/// Pushing never blocks: a full queue returns the item. Taking blocks until there is work, or until the queue
/// is closed and empty.
///
/// Each instance is a slot. Running a batch requires a slot, so at most as many batches run at once as there
/// are instances. The model's threads take slots with [`Queue::take`], and callers with
/// [`Queue::take_in_place`]. A caller can pass an unfinished run, an `R`, to a thread together with its slot
/// ([`Queue::hand_over`]).
///
/// Threads start on demand: `start` is called when work is waiting, a slot is free and no thread is idle. A
/// thread ends after `max_idle` without work, so an unused model has no threads.
pub(crate) struct Queue<T, R> {
    state: Mutex<State<T, R>>,
    changed: Condvar,
    max_idle: Option<Duration>,
    /// Starts a thread, which calls [`Queue::begin`] and then [`Queue::take`]. On failure it calls
    /// [`Queue::not_started`].
    start: Box<dyn Fn(&Self) + Send + Sync>,
    /// Returns the current time.
    now: fn() -> Instant,
}

struct State<T, R> {
    scheduler: Scheduler<T>,
    is_closed: bool,
    /// Unfinished runs that callers passed to threads, with their slots.
    handed_over: VecDeque<(usize, R)>,
    /// Number of callers that hold a slot and may still pass their run to a thread.
    in_place: usize,
    /// Slots without a running batch.
    free: Vec<usize>,
    /// Total number of slots.
    slots: usize,
    /// Number of threads of this queue, including those being started.
    threads: usize,
    /// Number of threads being started.
    starting: usize,
    /// Whether the queue may contain an item that its caller will not run, so that a thread has to run the
    /// item.
    needs_thread: bool,
    /// Number of threads that wait for work.
    idle: usize,
    /// Number of idle threads that were notified and have not woken up yet. On waking up, these threads see
    /// all queued work.
    woken: usize,
}

impl<T, R> State<T, R> {
    /// Decides which thread to wake for waiting work. The caller passes the result to [`Queue::wake`] after
    /// unlocking.
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
            // All threads are busy; they take more work from the queue when they finish.
            Wake::Nobody
        }
    }

    /// Takes the work of a thread, if there is any.
    fn take(&mut self, now: Instant) -> Taken<T, R> {
        if let Some((slot, rest)) = self.handed_over.pop_front() {
            return Taken::Work(Work {
                batch: Vec::new(),
                rest: Some(rest),
                expired: Vec::new(),
                slot: Some(slot),
            });
        }
        let expired = self.scheduler.expire(now);
        let next = match self.free.is_empty() {
            // Callers hold all slots. The first caller to finish wakes a thread.
            true => Next::Idle,
            false => self.scheduler.next(now),
        };
        let (batch, until) = match next {
            Next::Run(batch) => (batch, None),
            Next::WaitUntil(until) => (Vec::new(), Some(until)),
            Next::Idle => (Vec::new(), None),
        };
        self.took();
        if batch.is_empty() && expired.is_empty() {
            return Taken::Nothing { until };
        }
        let slot = if batch.is_empty() { None } else { self.free.pop() };
        Taken::Work(Work {
            batch,
            rest: None,
            expired,
            slot,
        })
    }

    /// Clears `needs_thread` if the scheduler is empty. Called after items were taken.
    fn took(&mut self) {
        self.needs_thread &= self.scheduler.len() > 0;
    }
}

/// The result of looking for work.
enum Taken<T, R> {
    Work(Work<T, R>),
    /// No work is ready. `until` is when an item's delay or timeout ends.
    Nothing {
        until: Option<Instant>,
    },
}

/// The thread to wake for waiting work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    Nobody,
    Idle,
    New,
}

/// The reason why an item was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    /// The queue is full.
    Full,
    /// The queue is closed.
    Closed,
}

/// Whether a thread or the caller runs a pushed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// A thread, which was woken if necessary.
    Thread,
    /// The caller, with [`Queue::take_in_place`], unless a thread takes the item first. No thread was woken.
    Caller,
}

/// Work that [`Queue::take`] gives to a thread.
#[derive(Debug)]
pub(crate) struct Work<T, R> {
    /// Items to run together; may be empty.
    pub(crate) batch: Vec<T>,
    /// A run that its caller passed on unfinished. If set, `batch` is empty.
    pub(crate) rest: Option<R>,
    /// Items whose timeout or deadline has passed, to be answered with an error.
    pub(crate) expired: Vec<(T, Expiry)>,
    /// Slot in which the thread runs the work and which it frees at the end; `None` if there is nothing to
    /// run.
    pub(crate) slot: Option<usize>,
}

impl<T, R> Queue<T, R> {
    /// Creates a queue for `instances` slots. `start` starts a thread. Threads end after `max_idle` without
    /// work.
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

    /// Queues the item that `item` creates from its ticket. The caller may run the item itself if an instance
    /// is free and no other item is waiting for a thread.
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

    /// Lets a caller run its item at once without queueing. Returns the ticket and the slot; the caller frees
    /// the slot with [`Queue::done_in_place`]. Calls `enter` with the ticket before later tickets are issued.
    /// Returns `None` if other items are waiting or no instance is free; the caller must then push the item.
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

    /// Adds a thread that was not started by the queue.
    #[cfg(test)]
    #[allow(dead_code, reason = "tests call that of their copy of this file")]
    pub(crate) fn enlist(&self) {
        self.lock().threads += 1;
    }

    /// Marks a thread that was being started as running.
    pub(crate) fn begin(&self) {
        self.lock().starting -= 1;
    }

    /// Records that a thread could not be started. If no thread is left, drops the runs that callers passed
    /// to threads and returns true: the caller must then refuse the waiting items.
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

    /// Subtracts the current thread from the number of threads: the thread has freed its slot and continues
    /// with its request.
    pub(crate) fn leave_thread(&self) {
        self.lock().threads -= 1;
    }

    /// Counts a thread again after [`Queue::leave_thread`], unless the queue has as many threads as slots
    /// plus `spare`. Returns whether the thread was counted.
    pub(crate) fn return_thread(&self, spare: usize) -> bool {
        let mut state = self.lock();
        let is_needed = state.threads < state.slots + spare;
        state.threads += usize::from(is_needed);
        is_needed
    }

    /// Returns whether the queue is closed, contains no items and has neither threads nor running callers.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_closed
            && state.threads == 0
            && state.in_place == 0
            && state.handed_over.is_empty()
            && state.scheduler.len() == 0
    }

    /// Waits for work. Returns `None` if the thread must end: the queue is closed and empty, or the thread
    /// was idle for `max_idle`. `done` is the slot of the thread's previous work.
    pub(crate) fn take(&self, done: Option<usize>) -> Option<Work<T, R>> {
        let mut state = self.lock();
        state.free.extend(done);
        let mut idle_since = None;
        loop {
            let now = (self.now)();
            let until = match state.take(now) {
                Taken::Work(work) => {
                    // Other items may be ready too, and another thread must watch the timeouts of the items
                    // that still wait.
                    let wake = state.wake();
                    drop(state);
                    self.wake(wake);
                    return Some(work);
                }
                Taken::Nothing { until } => until,
            };
            if until.is_none() && state.is_closed && state.scheduler.len() == 0 && state.in_place == 0 {
                state.threads -= 1;
                drop(state);
                // Other threads may be waiting for a slot although no work is left.
                self.changed.notify_all();
                return None;
            }
            if until.is_none() && idle_since.is_some_and(|since| self.is_idle_too_long(since, now)) {
                state.threads -= 1;
                return None;
            }
            // Only waiting for work counts as idle time; waiting for the batch delay of an item does not.
            let until = match (until, self.max_idle) {
                (Some(until), _) => {
                    idle_since = None;
                    Some(until)
                }
                (None, Some(max_idle)) => Some(*idle_since.get_or_insert(now) + max_idle),
                (None, None) => None,
            };
            state = self.wait(state, now, until);
        }
    }

    /// Waits until the thread is notified, or until `until`.
    fn wait<'q>(
        &'q self,
        mut state: MutexGuard<'q, State<T, R>>,
        now: Instant,
        until: Option<Instant>,
    ) -> MutexGuard<'q, State<T, R>> {
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
        // A thread whose wait timed out also decrements the count, because it may take the item before the
        // notified thread does.
        state.woken = state.woken.saturating_sub(1);
        state
    }

    fn is_idle_too_long(&self, since: Instant, now: Instant) -> bool {
        self.max_idle
            .is_some_and(|max_idle| now.saturating_duration_since(since) >= max_idle)
    }

    /// Takes the next batch for a caller that runs it on its own thread. Returns `None` if another thread has
    /// taken or will take the caller's item. `is_quick` receives the number of rows of the batch and returns
    /// whether the caller may run it.
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

    /// Passes a caller's unfinished run to a thread, together with its slot.
    pub(crate) fn hand_over(&self, slot: usize, rest: R) {
        let mut state = self.lock();
        state.in_place -= 1;
        state.handed_over.push_back((slot, rest));
        self.wake_or_end(state);
    }

    /// Frees the slot of a caller that has finished its run.
    pub(crate) fn done_in_place(&self, slot: usize) {
        let mut state = self.lock();
        state.in_place -= 1;
        self.give_back(state, slot);
    }

    /// Frees the slot of a thread that continues its request without a slot.
    pub(crate) fn free(&self, slot: usize) {
        self.give_back(self.lock(), slot);
    }

    fn give_back(&self, mut state: MutexGuard<'_, State<T, R>>, slot: usize) {
        state.free.push(slot);
        self.wake_or_end(state);
    }

    /// Wakes a thread for waiting work. Wakes all threads if the queue is closed, since nothing else may wake
    /// them.
    fn wake_or_end(&self, mut state: MutexGuard<'_, State<T, R>>) {
        let (wake, is_closed) = (state.wake(), state.is_closed);
        drop(state);
        if is_closed {
            self.changed.notify_all();
        }
        self.wake(wake);
    }

    /// Records that a caller will not run its item itself. The item may still be queued.
    pub(crate) fn leave(&self) {
        self.leave_to_threads(self.lock());
    }

    fn leave_to_threads(&self, mut state: MutexGuard<'_, State<T, R>>) {
        state.needs_thread = state.scheduler.len() > 0;
        let wake = state.wake();
        drop(state);
        self.wake(wake);
    }

    /// Removes an item whose client disconnected. Returns `None` if the item is not in the queue.
    pub(crate) fn cancel(&self, ticket: Ticket) -> Option<T> {
        let mut state = self.lock();
        let item = state.scheduler.cancel(ticket);
        state.took();
        item
    }

    /// Returns the number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.lock().scheduler.len()
    }

    /// Runs each item alone from now on.
    pub(crate) fn stop_joining(&self) {
        self.lock().scheduler.stop_joining();
        self.changed.notify_all();
    }

    /// Returns whether items are still batched together.
    pub(crate) fn is_joining(&self) -> bool {
        self.lock().scheduler.is_joining()
    }

    /// Refuses further items. Items in the queue become ready at once, without waiting for their batch delay.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.needs_thread = true;
        state.scheduler.flush();
        self.wake_or_end(state);
    }

    /// Removes and returns all items.
    pub(crate) fn drain(&self) -> Vec<T> {
        self.lock().scheduler.drain()
    }

    /// Locks the state. Poisoning is ignored: no code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
