//! The scheduler decides which requests wait, which run together, and when. It is a state machine without a
//! clock, threads or locks.
//!
//! Time is a parameter and the request type is generic, so tests can replay events in any order. `queue.rs`
//! connects the scheduler to a model's callers and threads.

mod order;
mod policy;
#[cfg(test)]
mod properties;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    time::{Duration, Instant},
};

pub(crate) use order::Turnstile;
pub use policy::{BatchPolicy, PolicyError};

/// The waiting requests of one model version.
///
/// Requests are served by priority, then by arrival. The first request determines the next batch: all
/// requests that can be batched with it, in order, up to the policy's limits. Every operation takes
/// logarithmic time, except for a scan over the groups while all of them are waiting for more requests.
pub(crate) struct Scheduler<T> {
    policy: BatchPolicy,
    capacity: usize,
    /// Whether requests are still batched together.
    is_joining: bool,
    /// Whether batches no longer wait for further requests.
    is_flushing: bool,
    arrivals: u64,
    /// Boxed, since B-tree nodes move their entries and reserve space for eleven entries.
    waiting: BTreeMap<QueuePosition, Box<Entry<T>>>,
    /// Waiting requests by key. Requests with equal keys form a group and can be batched together.
    groups: HashMap<JoinKey, BTreeSet<QueuePosition>>,
    /// Times at which the timeout or the deadline of a waiting request expires.
    timeouts: BTreeSet<(Instant, QueuePosition)>,
    /// Number of waiting requests in each priority level whose size is limited.
    limited: BTreeMap<u64, usize>,
}

/// The properties of a request that the scheduler needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    /// Number of rows of the request's inputs.
    pub(crate) rows: u64,
    /// Size of the request's inputs in bytes.
    pub(crate) bytes: u64,
    /// Requests with the same key can be batched together; `None` if the request must run alone.
    pub(crate) key: Option<JoinKey>,
    /// Priority: 1 is the highest, 0 the model's default.
    pub(crate) priority: u64,
    /// The request's own queue timeout, if the policy allows one.
    pub(crate) timeout: Option<Duration>,
    /// Time at which the client stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// The row count that determines the request's run time, to decide whether it may run in place; `None` if
    /// the run time does not depend on a row count.
    pub(crate) measured_rows: Option<u64>,
}

/// Requests with equal keys have the same trailing dimensions and parameters, and can be batched together.
/// `batch.rs` creates the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct JoinKey(pub(crate) Vec<u8>);

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    level: u64,
    arrival: u64,
}

impl Ticket {
    /// The request's sequence number by arrival.
    pub(crate) fn arrival(self) -> u64 {
        self.arrival
    }
}

/// The reason why a request left the queue without being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The request's deadline passed.
    Deadline,
    /// The policy's queue timeout expired.
    Timeout,
}

/// The next action of a free instance.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// Run these requests together. Contains at least one request.
    Run(Vec<T>),
    /// No batch is ready. Call [`Scheduler::next`] again at this time, or earlier if a request arrives.
    WaitUntil(Instant),
    /// No request waits. Call [`Scheduler::next`] again when a request arrives.
    Idle,
}

/// The decision for a caller that could run the next batch on its own thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InPlace<T> {
    /// Run these requests together. Contains at least one request.
    Run(Vec<T>),
    /// The next batch is too slow to run in place, or waits for more requests: a thread has to take it.
    Leave,
    /// No request waits.
    Idle,
}

/// Position of a request in the queue: by priority level, then by arrival; delayed requests come last in
/// their level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePosition {
    level: u64,
    is_delayed: bool,
    arrival: u64,
}

struct Entry<T> {
    item: T,
    ask: Ask,
    since: Instant,
    /// The earlier of the queue timeout and the deadline.
    timeout: Option<Instant>,
}

/// Decision about a group: whether its first requests run at once.
enum Cut {
    /// Run this many requests from the start of the group.
    Take(usize),
    /// Wait until this time for more requests to join the group.
    WaitUntil(Instant),
}

impl<T> Scheduler<T> {
    /// Creates an empty scheduler. `capacity` bounds the total number of waiting requests in the levels for
    /// which the policy sets no limit.
    pub(crate) fn new(policy: BatchPolicy, capacity: usize) -> Self {
        Self {
            is_joining: policy.max_rows() > 0,
            policy,
            capacity,
            is_flushing: false,
            arrivals: 0,
            waiting: BTreeMap::new(),
            groups: HashMap::new(),
            timeouts: BTreeSet::new(),
            limited: BTreeMap::new(),
        }
    }

    /// Returns the number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Queues the request that `item` creates from its ticket. Returns `None` if the queue is full.
    pub(crate) fn push(
        &mut self,
        mut ask: Ask,
        now: Instant,
        item: impl FnOnce(Ticket) -> T,
    ) -> Option<Ticket> {
        let level = self.policy.level(ask.priority);
        if !self.admit(level) {
            return None;
        }
        if !self.is_joining {
            ask.key = None;
        }
        let arrival = self.arrivals;
        self.arrivals += 1;
        let position = QueuePosition {
            level,
            is_delayed: false,
            arrival,
        };
        let policy_timeout = self.policy.timeout(level, ask.timeout);
        let policy_timeout = policy_timeout.and_then(|timeout| now.checked_add(timeout));
        let ticket = Ticket { level, arrival };
        let entry = Box::new(Entry {
            item: item(ticket),
            timeout: [policy_timeout, ask.deadline].into_iter().flatten().min(),
            since: now,
            ask,
        });
        self.insert(position, entry);
        Some(ticket)
    }

    /// Issues a ticket to a request that would run at once and alone, so that the request need not be queued.
    /// Returns `None` for any other request.
    pub(crate) fn pass(&mut self, ask: &Ask, now: Instant) -> Option<Ticket> {
        let level = self.policy.level(ask.priority);
        let waits =
            self.is_joining && ask.key.is_some() && !self.is_flushing && !self.policy.max_delay().is_zero();
        let timeout = self.policy.timeout(level, ask.timeout);
        let timeout = timeout.and_then(|timeout| now.checked_add(timeout));
        let is_late = [timeout, ask.deadline]
            .into_iter()
            .flatten()
            .any(|end| end <= now);
        let has_room = self.capacity > 0 || self.policy.queue(level).max_queue_size > 0;
        if !self.waiting.is_empty() || waits || is_late || !has_room {
            return None;
        }
        let arrival = self.arrivals;
        self.arrivals += 1;
        Some(Ticket { level, arrival })
    }

    /// Removes and returns expired requests. Requests whose timeout only delays them move to the end of their
    /// level. Call this method before [`Scheduler::next`].
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(T, Expiry)> {
        let mut expired = Vec::new();
        while let Some(&(timeout, position)) = self.timeouts.first()
            && timeout <= now
        {
            let Some(mut entry) = self.remove(position) else {
                // Removing the timeout ends the loop even if `timeouts` and `waiting` disagree.
                self.timeouts.remove(&(timeout, position));
                continue;
            };
            if entry.ask.deadline.is_some_and(|deadline| deadline <= now) {
                self.release(position.level);
                expired.push((entry.item, Expiry::Deadline));
            } else if self.policy.is_delayed_by_timeout(position.level) {
                entry.timeout = entry.ask.deadline;
                self.insert(
                    QueuePosition {
                        is_delayed: true,
                        ..position
                    },
                    entry,
                );
            } else {
                self.release(position.level);
                expired.push((entry.item, Expiry::Timeout));
            }
        }
        expired
    }

    /// Decides what a free instance should do.
    pub(crate) fn next(&mut self, now: Instant) -> Next<T> {
        let Some(first) = self.waiting.keys().next().copied() else {
            return Next::Idle;
        };
        let until = match self.cut(first, now) {
            Cut::Take(count) => return Next::Run(self.take(first, count)),
            Cut::WaitUntil(until) => until,
        };
        // The first request waits for others to join it. Another group may be full, or may have waited long
        // enough.
        let heads = self.groups.values().filter_map(BTreeSet::first).copied();
        let mut heads: Vec<QueuePosition> = heads.filter(|head| *head != first).collect();
        heads.extend(
            self.waiting
                .iter()
                .find(|(_, entry)| entry.ask.key.is_none())
                .map(|(position, _)| *position),
        );
        heads.sort_unstable();
        let mut until = until;
        for head in heads {
            match self.cut(head, now) {
                Cut::Take(count) => return Next::Run(self.take(head, count)),
                Cut::WaitUntil(other) => until = until.min(other),
            }
        }
        let timeout = self.timeouts.first().map(|(timeout, _)| *timeout);
        Next::WaitUntil(timeout.map_or(until, |timeout| timeout.min(until)))
    }

    /// Decides like [`Scheduler::next`], for a caller that may run only quick batches. `is_quick` receives
    /// the number of rows of the batch. If `is_quick` returns false, the scheduler is left unchanged.
    pub(crate) fn next_in_place(&mut self, now: Instant, is_quick: impl FnOnce(u64) -> bool) -> InPlace<T> {
        let Some(first) = self.waiting.keys().next().copied() else {
            return InPlace::Idle;
        };
        let Cut::Take(count) = self.cut(first, now) else {
            return InPlace::Leave;
        };
        match self.rows(first, count).is_some_and(is_quick) {
            true => InPlace::Run(self.take(first, count)),
            false => InPlace::Leave,
        }
    }

    /// Returns whether a request is still waiting.
    pub(crate) fn holds(&self, ticket: Ticket) -> bool {
        let Ticket { level, arrival } = ticket;
        [false, true].into_iter().any(|is_delayed| {
            self.waiting.contains_key(&QueuePosition {
                level,
                is_delayed,
                arrival,
            })
        })
    }

    /// Removes a request whose client disconnected. Returns `None` if the request is not waiting.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        let Ticket { level, arrival } = ticket;
        let position = |is_delayed| QueuePosition {
            level,
            is_delayed,
            arrival,
        };
        let entry = self
            .remove(position(false))
            .or_else(|| self.remove(position(true)))?;
        self.release(level);
        Some(entry.item)
    }

    /// Stops delaying batches: from now on, no batch waits for further requests.
    pub(crate) fn flush(&mut self) {
        self.is_flushing = true;
    }

    /// Runs each request alone from now on.
    pub(crate) fn stop_joining(&mut self) {
        self.is_joining = false;
        self.groups.clear();
        for entry in self.waiting.values_mut() {
            entry.ask.key = None;
        }
    }

    /// Returns whether requests are still batched together.
    pub(crate) fn is_joining(&self) -> bool {
        self.is_joining
    }

    /// Removes and returns all requests.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.groups.clear();
        self.timeouts.clear();
        self.limited.clear();
        mem::take(&mut self.waiting)
            .into_values()
            .map(|entry| entry.item)
            .collect()
    }

    /// Applies Triton's rules: run a preferred batch size as soon as it is reached; do not wait once the
    /// largest preferred size or the maximum batch size is exceeded; never wait longer than the maximum queue
    /// delay.
    fn cut(&self, head: QueuePosition, now: Instant) -> Cut {
        let group = self.waiting.get(&head).and_then(|entry| entry.ask.key.as_ref());
        let Some(group) = group.and_then(|key| self.groups.get(key)) else {
            return Cut::Take(1);
        };
        let policy = &self.policy;
        let delay = if self.is_flushing {
            Duration::ZERO
        } else {
            policy.max_delay()
        };
        let (mut count, mut rows, mut bytes) = (0, 0u64, 0u64);
        let (mut best, mut oldest, mut is_full) = (None, now, false);
        for entry in group.iter().filter_map(|position| self.waiting.get(position)) {
            let more_rows = rows.saturating_add(entry.ask.rows);
            let more_bytes = bytes.saturating_add(entry.ask.bytes);
            if count > 0 {
                if more_rows > policy.enough_rows() && best.is_none() {
                    best = Some(count);
                }
                if more_rows > policy.max_rows() || more_bytes > policy.max_joined_bytes() {
                    is_full = true;
                    break;
                }
            }
            (count, rows, bytes) = (count + 1, more_rows, more_bytes);
            oldest = oldest.min(entry.since);
            if policy.is_preferred(rows) {
                best = Some(count);
            }
        }
        // A delay that overflows the clock counts as no delay.
        let until = oldest.checked_add(delay).unwrap_or(now);
        let is_late = !delay.is_zero() && now >= until;
        match best {
            Some(best) if !is_late => Cut::Take(best),
            _ if is_full || is_late || delay.is_zero() || rows >= policy.enough_rows() => Cut::Take(count),
            _ => Cut::WaitUntil(until),
        }
    }

    /// Returns the positions of the first `count` requests of a group.
    fn positions(&self, head: QueuePosition, count: usize) -> Vec<QueuePosition> {
        let group = self.waiting.get(&head).and_then(|entry| entry.ask.key.as_ref());
        match group.and_then(|key| self.groups.get(key)) {
            Some(group) => group.iter().take(count).copied().collect(),
            None => vec![head],
        }
    }

    /// Returns the total number of rows of the first `count` requests of a group, if rows determine the run
    /// time.
    fn rows(&self, head: QueuePosition, count: usize) -> Option<u64> {
        let positions = self.positions(head, count);
        let mut asks = positions
            .iter()
            .map(|position| Some(&self.waiting.get(position)?.ask));
        asks.try_fold(0u64, |rows, ask| Some(rows.saturating_add(ask?.measured_rows?)))
    }

    /// Removes and returns the first `count` requests of a group.
    fn take(&mut self, head: QueuePosition, count: usize) -> Vec<T> {
        let positions = self.positions(head, count);
        let mut items = Vec::with_capacity(positions.len());
        for position in positions {
            if let Some(entry) = self.remove(position) {
                self.release(position.level);
                items.push(entry.item);
            }
        }
        items
    }

    fn insert(&mut self, position: QueuePosition, entry: Box<Entry<T>>) {
        if let Some(timeout) = entry.timeout {
            self.timeouts.insert((timeout, position));
        }
        if let Some(key) = &entry.ask.key {
            match self.groups.get_mut(key) {
                Some(group) => drop(group.insert(position)),
                None => drop(self.groups.insert(key.clone(), BTreeSet::from([position]))),
            }
        }
        self.waiting.insert(position, entry);
    }

    fn remove(&mut self, position: QueuePosition) -> Option<Box<Entry<T>>> {
        let entry = self.waiting.remove(&position)?;
        if let Some(timeout) = entry.timeout {
            self.timeouts.remove(&(timeout, position));
        }
        if let Some(key) = &entry.ask.key
            && let Some(group) = self.groups.get_mut(key)
        {
            group.remove(&position);
            if group.is_empty() {
                self.groups.remove(key);
            }
        }
        Some(entry)
    }

    /// Counts a request in its level. Returns false if the level is full.
    fn admit(&mut self, level: u64) -> bool {
        let limit = self.policy.queue(level).max_queue_size as usize;
        if limit == 0 {
            let limited: usize = self.limited.values().sum();
            return self.waiting.len() - limited < self.capacity;
        }
        let count = self.limited.entry(level).or_default();
        let has_room = *count < limit;
        *count += usize::from(has_room);
        has_room
    }

    /// Removes a request from the count of its level.
    fn release(&mut self, level: u64) {
        if let Some(count) = self.limited.get_mut(&level) {
            *count -= 1;
        }
    }
}
