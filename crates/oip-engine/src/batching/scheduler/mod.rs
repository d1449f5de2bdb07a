//! Which requests wait, which of them run together, and when: a state machine without clock, threads or locks.
//!
//! Time comes in as a parameter, requests as any type, so that all of it can be tested in any order of events;
//! `queue.rs` puts it between the callers of a model and its threads.

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

/// The requests that wait for one version of a model.
///
/// They are served by priority, then by arrival. The first decides what the next batch is made of: all that can be
/// joined with it, in the same order, up to the policy's limits. Nothing here takes longer than the logarithm of the
/// number of requests, but for looking through the groups while all of them wait for more.
pub(crate) struct Scheduler<T> {
    policy: BatchPolicy,
    capacity: usize,
    /// Whether requests are joined (still).
    is_joining: bool,
    /// Whether no request waits for others any more.
    is_flushing: bool,
    arrivals: u64,
    /// Boxed: a map moves what it holds, and makes room for eleven at a time.
    waiting: BTreeMap<Place, Box<Entry<T>>>,
    /// Which requests can be joined.
    groups: HashMap<JoinKey, BTreeSet<Place>>,
    /// When whose time is over.
    timeouts: BTreeSet<(Instant, Place)>,
    /// How many wait in levels that have a limit of their own.
    limited: BTreeMap<u64, usize>,
}

/// What the scheduler must know about a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    /// Rows of its inputs.
    pub(crate) rows: u64,
    /// Bytes of its inputs.
    pub(crate) bytes: u64,
    /// With whom it can be joined; `None` if it runs by itself.
    pub(crate) key: Option<JoinKey>,
    /// Its priority: 1 is the highest, 0 the model's default.
    pub(crate) priority: u64,
    /// How long it would wait, where the policy leaves that to requests.
    pub(crate) timeout: Option<Duration>,
    /// When its answer is of no use any more.
    pub(crate) deadline: Option<Instant>,
    /// The rows that say how long it takes, so that a caller may run it in place; `None` where nothing says that.
    pub(crate) measured_rows: Option<u64>,
}

/// Requests with equal keys can be joined: same trailing dimensions, same parameters (`batch.rs` makes them).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct JoinKey(pub(crate) Vec<u8>);

/// Names a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    level: u64,
    arrival: u64,
}

impl Ticket {
    /// The number of the request, counted by arrival.
    pub(crate) fn arrival(self) -> u64 {
        self.arrival
    }
}

/// Why a request left the queue without being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// Its answer is of no use any more.
    Deadline,
    /// It waited as long as the policy allows.
    Timeout,
}

/// What an instance that is free should do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// Run these together; there is at least one.
    Run(Vec<T>),
    /// Ask again at this time, or when a request has come.
    WaitUntil(Instant),
    /// Ask again when a request has come.
    Idle,
}

/// The decision for a caller that could run the next batch on its own thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InPlace<T> {
    /// Run these together; there is at least one.
    Run(Vec<T>),
    /// The next batch takes too long for that, or waits for company: it is for an instance's thread.
    Leave,
    /// Nothing waits.
    Idle,
}

/// A request's position: by level, then by arrival; delayed ones come last in their level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    level: u64,
    is_delayed: bool,
    arrival: u64,
}

struct Entry<T> {
    item: T,
    ask: Ask,
    since: Instant,
    /// When something happens to it unless it runs before: the policy's time is over, or the deadline has come.
    timeout: Option<Instant>,
}

/// The state of a group.
enum Cut {
    /// Run so many of its first requests.
    Take(usize),
    /// More may come until then.
    WaitUntil(Instant),
}

impl<T> Scheduler<T> {
    /// A scheduler without requests. `capacity` requests may wait in all levels for which the policy has no limit.
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

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a request, which `item` makes from its ticket; `None` when the queue is full.
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
        let place = Place {
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
        self.insert(place, entry);
        Some(ticket)
    }

    /// The ticket of a request that need not enter the queue: nothing waits before it and it needs no company, so it would be the next batch alone.
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

    /// Takes those out whose time is over, and puts those back that the policy delays. To be called before
    /// [`Scheduler::next`].
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(T, Expiry)> {
        let mut expired = Vec::new();
        while let Some(&(timeout, place)) = self.timeouts.first()
            && timeout <= now
        {
            let Some(mut entry) = self.remove(place) else {
                // Both are changed together; were they not, this would not end.
                self.timeouts.remove(&(timeout, place));
                continue;
            };
            if entry.ask.deadline.is_some_and(|deadline| deadline <= now) {
                self.release(place.level);
                expired.push((entry.item, Expiry::Deadline));
            } else if self.policy.is_delayed_by_timeout(place.level) {
                entry.timeout = entry.ask.deadline;
                self.insert(
                    Place {
                        is_delayed: true,
                        ..place
                    },
                    entry,
                );
            } else {
                self.release(place.level);
                expired.push((entry.item, Expiry::Timeout));
            }
        }
        expired
    }

    /// What an instance that is free should do.
    pub(crate) fn next(&mut self, now: Instant) -> Next<T> {
        let Some(first) = self.waiting.keys().next().copied() else {
            return Next::Idle;
        };
        let until = match self.cut(first, now) {
            Cut::Take(count) => return Next::Run(self.take(first, count)),
            Cut::WaitUntil(until) => until,
        };
        // The first one waits for company. Another group may have enough of it, or have waited long enough.
        let heads = self.groups.values().filter_map(BTreeSet::first).copied();
        let mut heads: Vec<Place> = heads.filter(|head| *head != first).collect();
        heads.extend(
            self.waiting
                .iter()
                .find(|(_, entry)| entry.ask.key.is_none())
                .map(|(place, _)| *place),
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

    /// As [`Scheduler::next`], for a caller that may only run what is quick: `is_quick` decides by the rows of the next
    /// batch. If it says no, nothing changes.
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

    /// Whether a request still waits.
    pub(crate) fn holds(&self, ticket: Ticket) -> bool {
        let Ticket { level, arrival } = ticket;
        [false, true].into_iter().any(|is_delayed| {
            self.waiting.contains_key(&Place {
                level,
                is_delayed,
                arrival,
            })
        })
    }

    /// Takes a request out that nobody waits for any more; `None` when it has left already.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        let Ticket { level, arrival } = ticket;
        let place = |is_delayed| Place {
            level,
            is_delayed,
            arrival,
        };
        let entry = self.remove(place(false)).or_else(|| self.remove(place(true)))?;
        self.release(level);
        Some(entry.item)
    }

    /// From now on no request waits for others.
    pub(crate) fn flush(&mut self) {
        self.is_flushing = true;
    }

    /// From now on every request runs by itself.
    pub(crate) fn stop_joining(&mut self) {
        self.is_joining = false;
        self.groups.clear();
        for entry in self.waiting.values_mut() {
            entry.ask.key = None;
        }
    }

    /// Whether requests are joined (still).
    pub(crate) fn is_joining(&self) -> bool {
        self.is_joining
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.groups.clear();
        self.timeouts.clear();
        self.limited.clear();
        mem::take(&mut self.waiting)
            .into_values()
            .map(|entry| entry.item)
            .collect()
    }

    /// Triton's rules: a preferred size is run as soon as it is there; what exceeds the largest of them, or fills the
    /// batch, is not waited for; and no request waits longer than the delay.
    fn cut(&self, head: Place, now: Instant) -> Cut {
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
        for entry in group.iter().filter_map(|place| self.waiting.get(place)) {
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
        // A delay beyond the end of time cannot be waited for.
        let until = oldest.checked_add(delay).unwrap_or(now);
        let is_late = !delay.is_zero() && now >= until;
        match best {
            Some(best) if !is_late => Cut::Take(best),
            _ if is_full || is_late || delay.is_zero() || rows >= policy.enough_rows() => Cut::Take(count),
            _ => Cut::WaitUntil(until),
        }
    }

    /// The first places of a group.
    fn places(&self, head: Place, count: usize) -> Vec<Place> {
        let group = self.waiting.get(&head).and_then(|entry| entry.ask.key.as_ref());
        match group.and_then(|key| self.groups.get(key)) {
            Some(group) => group.iter().take(count).copied().collect(),
            None => vec![head],
        }
    }

    /// Rows of the first requests of a group, if those say how long they take.
    fn rows(&self, head: Place, count: usize) -> Option<u64> {
        let places = self.places(head, count);
        let mut asks = places.iter().map(|place| Some(&self.waiting.get(place)?.ask));
        asks.try_fold(0u64, |rows, ask| Some(rows.saturating_add(ask?.measured_rows?)))
    }

    /// Takes the first requests of a group out.
    fn take(&mut self, head: Place, count: usize) -> Vec<T> {
        let places = self.places(head, count);
        let mut items = Vec::with_capacity(places.len());
        for place in places {
            if let Some(entry) = self.remove(place) {
                self.release(place.level);
                items.push(entry.item);
            }
        }
        items
    }

    fn insert(&mut self, place: Place, entry: Box<Entry<T>>) {
        if let Some(timeout) = entry.timeout {
            self.timeouts.insert((timeout, place));
        }
        if let Some(key) = &entry.ask.key {
            match self.groups.get_mut(key) {
                Some(group) => drop(group.insert(place)),
                None => drop(self.groups.insert(key.clone(), BTreeSet::from([place]))),
            }
        }
        self.waiting.insert(place, entry);
    }

    fn remove(&mut self, place: Place) -> Option<Box<Entry<T>>> {
        let entry = self.waiting.remove(&place)?;
        if let Some(timeout) = entry.timeout {
            self.timeouts.remove(&(timeout, place));
        }
        if let Some(key) = &entry.ask.key
            && let Some(group) = self.groups.get_mut(key)
        {
            group.remove(&place);
            if group.is_empty() {
                self.groups.remove(key);
            }
        }
        Some(entry)
    }

    /// Whether one more may wait in a level; if so it is counted.
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

    /// One less waits in a level.
    fn release(&mut self, level: u64) {
        if let Some(count) = self.limited.get_mut(&level) {
            *count -= 1;
        }
    }
}
