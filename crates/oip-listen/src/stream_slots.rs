//! Stream slots: limit HTTP/2 streams over all connections, and evict waiting streams in favour of new ones.
//!
//! A stream that waits for its client keeps its slot, for any length of time, until another stream needs the
//! slot. A stream with work in progress keeps its slot to the end.

use std::{
    collections::HashMap,
    future::poll_fn,
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::Extensions;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// The maximum number of streams over all connections that share this cap, in addition to the first few
/// streams of each connection.
///
/// When the cap is reached, a new stream takes the slot of a stream that waits for its client, on the
/// connection that has the most streams among those with a waiting stream. A stream that will itself mostly
/// wait ([`Lasting`]) takes no slot from a connection with fewer streams than its own. A connection that has
/// its fair share (all slots divided by the number of connections with streams) leaves the last eighth of the
/// slots to others. A stream without a slot is refused with `REFUSED_STREAM`, which tells its client that the
/// request was not processed.
#[derive(Clone, Debug)]
pub struct StreamCap(Arc<SharedState>);

#[derive(Debug)]
struct SharedState {
    places: usize,
    taken: Mutex<Occupancy>,
    open: AtomicUsize,
    refused: AtomicU64,
    evicted: AtomicU64,
    unread: AtomicU64,
}

/// The kind of slot that a new stream may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admission {
    /// Takes a slot that is reserved for the stream's own connection.
    Assured,
    /// Takes the slot of any waiting stream, because the new stream has work to do.
    Work,
    /// Takes the slot of a waiting stream, but not on a connection with fewer streams than the new stream's
    /// own connection, because the new stream will itself mostly wait.
    Lasting,
}

/// The occupied slots.
#[derive(Debug, Default)]
struct Occupancy {
    /// The occupied slots by connection number.
    by: HashMap<u64, Vec<Arc<Seat>>>,
    total: usize,
}

/// Counts of streams.
///
/// ```
/// assert_eq!(oip_listen::StreamCap::new(10).counts().open, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamCounts {
    /// Number of streams that are open at the moment.
    pub open: u64,
    /// Number of streams that were refused because no slot was free.
    pub refused: u64,
    /// Number of streams that were ended while waiting for their client, because another stream or connection
    /// needed the slot.
    pub evicted: u64,
    /// Number of streams that were reset because the client did not read.
    pub unread: u64,
}

impl StreamCap {
    /// Creates a limit of `streams` concurrent streams.
    #[must_use]
    pub fn new(streams: usize) -> Self {
        Self(Arc::new(SharedState {
            places: streams,
            taken: Mutex::default(),
            open: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            unread: AtomicU64::new(0),
        }))
    }

    /// Returns the counts so far, including streams in their connection's own slots.
    #[must_use]
    pub fn counts(&self) -> StreamCounts {
        let shared = &*self.0;
        StreamCounts {
            open: shared.open.load(Ordering::Relaxed) as u64,
            refused: shared.refused.load(Ordering::Relaxed),
            evicted: shared.evicted.load(Ordering::Relaxed),
            unread: shared.unread.load(Ordering::Relaxed),
        }
    }

    /// Admits a stream to one of its connection's own slots or to a shared slot. If no shared slot is free,
    /// evicts a waiting stream. Returns `None` if the new stream is refused.
    pub(crate) fn admit(&self, connection: u64, kind: Admission, seat: Arc<Seat>) -> Option<SlotGuard> {
        let is_assured = matches!(kind, Admission::Assured);
        if !is_assured && !self.take(connection, kind, &seat, Instant::now()) {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Some(SlotGuard {
            cap: self.clone(),
            connection,
            is_assured,
            seat,
        })
    }

    fn take(&self, connection: u64, kind: Admission, seat: &Arc<Seat>, now: Instant) -> bool {
        let places = self.0.places;
        // The tasks of the revoked stream are woken after the lock is released.
        let mut revoked = None;
        let mut taken = self.lock();
        let own = taken.by.get(&connection).map_or(0, Vec::len);
        let connections = taken.by.len() + usize::from(own == 0);
        let free = places.saturating_sub(taken.total);
        let kept_for_others = if own >= places / connections {
            places / 8
        } else {
            0
        };
        if free <= kept_for_others {
            // If slots are free, the new stream is denied them only because its connection already has its
            // fair share. In that case, the new stream may evict only streams of connections with at least
            // half as many streams.
            let least = match kind {
                Admission::Lasting => own,
                Admission::Assured | Admission::Work if free > 0 => own / 2,
                Admission::Assured | Admission::Work => 0,
            };
            revoked = taken.evict(least, now);
            if revoked.is_none() {
                return false;
            }
            self.0.evicted.fetch_add(1, Ordering::Relaxed);
        }
        taken.total += 1;
        taken.by.entry(connection).or_default().push(seat.clone());
        drop(taken);
        if let Some(revoked) = revoked {
            revoked.wake();
        }
        true
    }

    /// Ends the waiting streams of a connection that is evicted.
    pub(crate) fn evict_all(&self, seats: &[Arc<Seat>]) {
        let evicted = revoke_all(seats);
        self.0.evicted.fetch_add(evicted as u64, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Occupancy> {
        self.0.taken.lock()
    }
}

/// Revokes the slots of waiting streams; returns their number.
pub(crate) fn revoke_all(seats: &[Arc<Seat>]) -> usize {
    let revoked = seats.iter().filter_map(|seat| seat.revoke(None));
    revoked.map(RevokedTasks::wake).count()
}

impl Occupancy {
    /// Ends the stream that has waited for its client the longest, on the connection with the most slots
    /// among those with a waiting stream. Does nothing if that connection has fewer than `least` slots.
    fn evict(&mut self, least: usize, now: Instant) -> Option<RevokedTasks> {
        loop {
            let ripe = self.by.iter().filter_map(|(connection, seats)| {
                let ripe = seats
                    .iter()
                    .filter_map(|seat| Some((seat.ripe_since(now)?, seat)));
                let (since, seat) = ripe.min_by_key(|(since, _)| *since)?;
                Some((seats.len(), since, *connection, seat.clone()))
            });
            let most = ripe.max_by(|one, other| one.0.cmp(&other.0).then(other.1.cmp(&one.1)));
            let (_, _, connection, seat) = most.filter(|(count, ..)| *count >= least)?;
            if let Some(revoked) = seat.revoke(Some(now)) {
                self.remove(connection, &seat);
                return Some(revoked);
            }
            // The stream resumed work after the check above, so its slot was not revoked. The next check
            // finds the stream working.
        }
    }

    /// Removes a stream, unless its slot was already revoked.
    fn remove(&mut self, connection: u64, seat: &Arc<Seat>) {
        let Some(seats) = self.by.get_mut(&connection) else {
            return;
        };
        if let Some(at) = seats.iter().position(|other| Arc::ptr_eq(other, seat)) {
            seats.swap_remove(at);
            self.total -= 1;
        }
        if seats.is_empty() {
            self.by.remove(&connection);
        }
    }
}

/// The slot of an open stream. Dropping the value frees the slot.
pub(crate) struct SlotGuard {
    cap: StreamCap,
    connection: u64,
    is_assured: bool,
    seat: Arc<Seat>,
}

impl SlotGuard {
    /// Counts a stream that was reset because its client did not read.
    pub(crate) fn note_unread(&self) {
        self.cap.0.unread.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.cap.0.open.fetch_sub(1, Ordering::Relaxed);
        if !self.is_assured {
            self.cap.lock().remove(self.connection, &self.seat);
        }
    }
}

/// The reason why a stream is waiting for its client.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// The stream is waiting for the next request of a conversation.
    Request,
    /// The stream is waiting for more bytes of a request's body.
    Body,
    /// The stream is waiting for flow-control window to continue its response.
    Room,
}

impl Wait {
    /// Returns how long a stream may wait before it can be evicted.
    const fn patience(self) -> Duration {
        match self {
            // The next request may be on its way.
            Self::Request => Duration::from_millis(200),
            Self::Body => Duration::from_secs(1),
            // Eviction would lose the response.
            Self::Room => Duration::from_secs(5),
        }
    }

    const COUNT: usize = 3;
}

/// Whether a request is working or waiting for its client. A connection is working while any of its requests
/// is working.
#[derive(Debug, Default)]
pub(crate) struct Seat(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The time at which the stream becomes evictable, for each kind of wait. The stream is working while all
    /// are `None`.
    waits: [Option<Instant>; Wait::COUNT],
    is_revoked: bool,
    /// The wakers of the connection's task and of the service's task.
    wakers: [Option<Waker>; 2],
}

impl State {
    /// Returns the time at which the stream becomes evictable; `None` while the stream is working. If the
    /// stream is waiting for flow-control window, only that wait counts, because eviction would lose the
    /// response.
    fn ripe(&self) -> Option<Instant> {
        let of_room = self.waits[Wait::Room as usize];
        of_room.or_else(|| self.waits.iter().flatten().min().copied())
    }
}

/// The wakers of an evicted stream. The wakers are called without holding a lock, because a waker may drop a
/// value that takes the lock.
#[must_use]
struct RevokedTasks([Option<Waker>; 2]);

impl RevokedTasks {
    fn wake(self) {
        self.0.into_iter().flatten().for_each(Waker::wake);
    }
}

/// A task that is woken on eviction.
#[derive(Clone, Copy)]
pub(crate) enum Waiter {
    Connection,
    Service,
}

impl Seat {
    /// Records that the stream is waiting for its client.
    pub(crate) fn waits(&self, wait: Wait) {
        self.set(wait, Some(Instant::now() + wait.patience()));
    }

    /// Records that the wait `wait` of the stream is over.
    pub(crate) fn goes_on(&self, wait: Wait) {
        self.set(wait, None);
    }

    fn set(&self, wait: Wait, ripe: Option<Instant>) {
        self.lock().waits[wait as usize] = ripe;
    }

    /// Returns the time since which the stream has been evictable, as of `now`; `None` if the stream is not
    /// evictable, or if its slot was revoked.
    fn ripe_since(&self, now: Instant) -> Option<Instant> {
        let state = self.lock();
        let ripe = state.ripe().filter(|_| !state.is_revoked);
        ripe.filter(|ripe| *ripe <= now)
    }

    /// Returns the time since which the stream has been idle; `if_revoked` if the stream was evicted; `None`
    /// if it is working.
    pub(crate) fn idle_since(&self, if_revoked: Instant) -> Option<Instant> {
        let state = self.lock();
        match state.is_revoked {
            true => Some(if_revoked),
            false => state.ripe(),
        }
    }

    /// Revokes the slot if the stream was evictable at `now`, or if the stream is waiting and `now` is
    /// `None`. Returns the tasks to wake.
    fn revoke(&self, now: Option<Instant>) -> Option<RevokedTasks> {
        let mut state = self.lock();
        let ripe = state.ripe().filter(|ripe| now.is_none_or(|now| *ripe <= now));
        if ripe.is_none() || state.is_revoked {
            return None;
        }
        state.is_revoked = true;
        Some(RevokedTasks(mem::take(&mut state.wakers)))
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.lock().is_revoked
    }

    /// Becomes ready once the slot is revoked.
    pub(crate) fn poll_revoked(&self, waiter: Waiter, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.is_revoked {
            return Poll::Ready(());
        }
        let known = &mut state.wakers[waiter as usize];
        match known {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

/// Long-lived requests that are mostly idle, such as conversations and subscriptions.
///
/// ```
/// use http::Extensions;
/// use oip_listen::Lasting;
///
/// // The service finds the slot as an extension of its requests.
/// let lasting = Lasting::new(&["/events"], |place| {
///     let mut extensions = Extensions::new();
///     extensions.insert(place);
///     extensions
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Lasting {
    paths: &'static [&'static str],
    introduce: fn(StreamSlot) -> Extensions,
}

impl Lasting {
    /// Describes requests with these paths. `introduce` wraps the slot into request extensions that the
    /// service understands.
    #[must_use]
    pub fn new(paths: &'static [&'static str], introduce: fn(StreamSlot) -> Extensions) -> Self {
        Self { paths, introduce }
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.paths.contains(&path)
    }

    /// Returns the extensions for a request, if `path` is one of the configured paths.
    pub(crate) fn of(&self, path: &str, seat: &Arc<Seat>) -> Option<Extensions> {
        self.contains(path)
            .then(|| (self.introduce)(StreamSlot(seat.clone())))
    }
}

/// The slot of a stream, for services with long-lived, mostly idle streams. The service reports when the
/// stream is idle, and ends the stream when its slot is needed. See [`Lasting`].
#[derive(Clone, Debug)]
pub struct StreamSlot(Arc<Seat>);

impl StreamSlot {
    /// Marks the stream as idle: it is waiting for its client's next request, or for an event to report. An
    /// idle stream can be evicted.
    pub fn rest(&self) {
        self.0.waits(Wait::Request);
    }

    /// Marks the stream as working. Returns false if its slot was already revoked; the stream then has to
    /// end.
    #[must_use]
    pub fn work(&self) -> bool {
        self.0.goes_on(Wait::Request);
        !self.0.is_revoked()
    }

    /// Waits until the stream's slot is revoked. The service then has half a second to finish the stream, or
    /// a second if the connection stays open.
    pub async fn revoked(&self) {
        poll_fn(|cx| self.poll_revoked(cx)).await;
    }

    /// Polls for the revocation of the stream's slot. Only one task may poll for it.
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_revoked(Waiter::Service, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(cap: &StreamCap, connection: u64) -> Option<(Arc<Seat>, SlotGuard)> {
        take_as(cap, connection, Admission::Work)
    }

    fn take_as(cap: &StreamCap, connection: u64, kind: Admission) -> Option<(Arc<Seat>, SlotGuard)> {
        let seat = Arc::<Seat>::default();
        Some((seat.clone(), cap.admit(connection, kind, seat)?))
    }

    /// Makes a stream evictable.
    fn is_ripe(seat: &Seat) {
        seat.set(Wait::Request, Some(Instant::now()));
    }

    #[test]
    fn a_stream_that_waits_gives_way_and_one_that_works_does_not() {
        let cap = StreamCap::new(4);
        let taken: Vec<_> = (0..4).map(|_| take(&cap, 1).unwrap()).collect();
        assert!(take(&cap, 2).is_none());
        is_ripe(&taken[2].0);
        taken[1].0.waits(Wait::Body);
        is_ripe(&taken[0].0);
        taken[0].0.goes_on(Wait::Request);
        let (_, place) = take(&cap, 2).unwrap();
        let revoked: Vec<_> = taken.iter().map(|(seat, _)| seat.is_revoked()).collect();
        assert_eq!(revoked, [false, false, true, false]);
        assert!(take(&cap, 2).is_none(), "one has waited for too short a time");
        assert_eq!(
            cap.counts(),
            StreamCounts {
                open: 5,
                refused: 2,
                evicted: 1,
                unread: 0
            }
        );
        drop((taken, place));
        assert_eq!(cap.counts().open, 0);
        let taken = cap.lock();
        assert!(taken.by.is_empty() && taken.total == 0);
    }

    #[test]
    fn the_connection_with_the_most_streams_loses_one_and_streams_that_last_take_none_from_those_with_fewer()
    {
        let cap = StreamCap::new(10);
        let many: Vec<_> = (0..6).map(|_| take(&cap, 1).unwrap()).collect();
        let few: Vec<_> = (0..4).map(|_| take(&cap, 2).unwrap()).collect();
        // The streams that have been idle the longest belong to the connection with few streams.
        few.iter().chain(&many).for_each(|(seat, _)| is_ripe(seat));
        let third: Vec<_> = (0..2).map(|_| take(&cap, 3).unwrap()).collect();
        let lost =
            |streams: &[(Arc<Seat>, SlotGuard)]| streams.iter().filter(|(seat, _)| seat.is_revoked()).count();
        assert_eq!((lost(&few), lost(&many)), (0, 2));
        for (seat, _) in few.iter().chain(&many) {
            seat.goes_on(Wait::Request);
        }
        assert!(take(&cap, 3).is_none(), "all work");
        is_ripe(&third[0].0);
        let last = |connection| take_as(&cap, connection, Admission::Lasting);
        assert!(last(2).is_none(), "it has more than the one that waits");
        let own = last(3).unwrap();
        assert_eq!(lost(&third), 1);
        is_ripe(&own.0);
        assert!(take(&cap, 2).is_some(), "there is work to do for this one");
    }

    #[test]
    fn a_connection_with_its_share_leaves_the_rest_to_others() {
        let cap = StreamCap::new(80);
        let first: Vec<_> = (0..30).map(|_| take(&cap, 1).unwrap()).collect();
        let mut second: Vec<_> = (0..40).map(|_| take(&cap, 2).unwrap()).collect();
        assert!(take(&cap, 2).is_none(), "it has its share of 40, and 10 are left");
        let third: Vec<_> = (0..10).map(|_| take(&cap, 3).unwrap()).collect();
        // Freed slots go to connections with fewer streams.
        second.pop();
        assert!(take(&cap, 2).is_none());
        assert!(take(&cap, 3).is_some());
        drop((first, third));
        let more: Vec<_> = std::iter::from_fn(|| take(&cap, 2)).collect();
        assert_eq!(second.len() + more.len(), 80, "alone it may have all");
    }
}
