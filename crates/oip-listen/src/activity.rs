//! Tracks the activity of one connection, for its timeouts and its eviction.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use crate::{
    ConnectionLimits, Protocol,
    connections::Occupant,
    lanes::Lane,
    send_pace::SendPace,
    stream_slots::{Seat, revoke_all},
};

/// The activity of one connection that its timeouts depend on.
///
/// The connection's reader, service and bodies report events. Its watchdog calls `verdict`, which derives the
/// next deadline from them.
#[derive(Clone, Debug)]
pub(crate) struct Activity(Arc<SharedState>);

#[derive(Debug)]
struct SharedState {
    /// Number of the connection, unique within the process.
    number: u64,
    limits: ConnectionLimits,
    state: Mutex<State>,
    /// Notified when another connection needs this connection's slot.
    asked_to_close: Notify,
    /// Notified when the client reads none of its streams.
    all_stuck: Notify,
    /// The connection's [`Lane`], as a number.
    lane: AtomicU8,
    /// Number of polls of the connection. A turn is the time from one poll to the next.
    turns: AtomicU32,
    /// Whether the connection used up its turn and must yield, even with data left to read.
    is_turn_over: AtomicBool,
    /// Whether the socket's send buffer is full because the client does not read.
    is_write_stalled: AtomicBool,
}

#[derive(Debug)]
struct State {
    protocol: Protocol,
    bytes_read: u64,
    /// The open requests: their responses are not fully sent yet.
    open: Vec<Arc<Seat>>,
    /// Time at which the last open request ended.
    idle_since: Instant,
    /// Time at which the first byte of an incomplete request head arrived.
    head_since: Option<Instant>,
    /// Whether the connection has had a request.
    had_request: bool,
    /// Whether a response was sent before its request was fully read. If so, the connection must be closed.
    has_unread_request: bool,
    /// Time at which the connection was asked to free its slot for another connection.
    asked_to_close: Option<Instant>,
    /// Responses being sent over HTTP/1.
    sending: Vec<Sending>,
    /// HTTP/2: number of open requests that are waiting for flow-control window to continue their response.
    waiting_for_room: usize,
    /// HTTP/2: time at which the client last read a whole response, or a part of a response that had waited
    /// for flow-control window.
    taken: Instant,
    /// Time at which the last piece of a response was passed to hyper, and the turn in which that happened.
    /// Events of the same turn reuse this time.
    given: Option<(u32, Instant)>,
    next_response: u64,
}

/// A response that is being sent.
#[derive(Debug)]
struct Sending {
    response: u64,
    /// Number of pieces that were passed to hyper and are not written yet. The client has been the bottleneck
    /// since `since`.
    pieces: usize,
    since: Instant,
    pace: SendPace,
    /// Whether the whole response was passed to hyper.
    is_ended: bool,
}

/// The watchdog's decision about a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Do nothing until this time, and then check again.
    WaitUntil(Instant),
    /// Close the connection gracefully, because it is idle.
    Close,
    /// Cut the connection, because it is stuck.
    Cut(&'static str),
}

/// Length of an HTTP/2 client's preface and its first frame header, in bytes. With fewer bytes there is no
/// HTTP/2 connection.
const HTTP2_OPENING: u64 = 24 + 9;

impl Activity {
    pub(crate) fn new(protocol: Protocol, limits: &ConnectionLimits) -> Self {
        let state = State {
            protocol,
            bytes_read: 0,
            open: Vec::new(),
            idle_since: Instant::now(),
            head_since: None,
            had_request: false,
            has_unread_request: false,
            asked_to_close: None,
            sending: Vec::new(),
            waiting_for_room: 0,
            taken: Instant::now(),
            given: None,
            next_response: 0,
        };
        static OPENED: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(SharedState {
            number: OPENED.fetch_add(1, Ordering::Relaxed),
            limits: limits.clone(),
            state: Mutex::new(state),
            asked_to_close: Notify::new(),
            all_stuck: Notify::new(),
            lane: AtomicU8::new(Lane::Front as u8),
            turns: AtomicU32::new(0),
            is_turn_over: AtomicBool::new(false),
            is_write_stalled: AtomicBool::new(false),
        }))
    }

    /// Records the end of the handshake. The client has not sent any data of its protocol yet.
    pub(crate) fn opened(&self, protocol: Protocol) {
        let mut state = self.lock();
        state.protocol = protocol;
        state.idle_since = Instant::now();
    }

    /// Waits until the connection is asked to free its slot for another connection.
    pub(crate) async fn asked_to_close(&self) {
        self.0.asked_to_close.notified().await;
    }

    /// Returns the connection's number, which is unique within the process.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns whether a connection that was asked to free its slot is still idle and may close. If so, its
    /// requests that wait for the client lose their slots.
    pub(crate) fn may_close(&self) -> bool {
        let mut state = self.lock();
        let may_close = self
            .idles_since(&state)
            .is_some_and(|since| since <= Instant::now());
        if !may_close {
            state.asked_to_close = None;
            return false;
        }
        let (is_http2, open) = (state.protocol == Protocol::Http2, state.open.clone());
        drop(state);
        match is_http2 {
            true => self.0.limits.streams.evict_all(&open),
            // HTTP/1 has no streams, so only the eviction of the connection is counted.
            false => _ = revoke_all(&open),
        }
        self.0.limits.connections.note_evicted();
        true
    }

    /// Returns the time since which the connection has only been waiting for its client; `None` if it has
    /// work to do.
    fn idles_since(&self, state: &State) -> Option<Instant> {
        if !self.is_all_sent(state) {
            return None;
        }
        let mut of_requests = state.open.iter().map(|seat| seat.idle_since(state.idle_since));
        of_requests.try_fold(state.idle_since, |latest, since| Some(latest.max(since?)))
    }

    /// Returns whether a request is being processed rather than waiting for its client.
    pub(crate) fn is_working(&self) -> bool {
        let state = self.lock();
        let mut open = state.open.iter();
        open.any(|seat| seat.idle_since(state.idle_since).is_none())
    }

    pub(crate) fn limits(&self) -> &ConnectionLimits {
        &self.0.limits
    }

    /// Waits until a stream is reset because its client does not read it, and the client reads no other
    /// stream either.
    pub(crate) async fn all_stuck(&self) {
        self.0.all_stuck.notified().await;
    }

    /// Records that a stream is waiting for flow-control window.
    pub(crate) fn waits_for_room(&self) {
        self.lock().waiting_for_room += 1;
    }

    /// Records that a stream was given flow-control window (`has_room`), or stopped waiting for it.
    pub(crate) fn waits_no_more(&self, has_room: bool) {
        let mut state = self.lock();
        state.waiting_for_room = state.waiting_for_room.saturating_sub(1);
        if has_room {
            state.taken = Instant::now();
        }
    }

    /// Records that an open stream is reset because it was given no flow-control window since `since`.
    pub(crate) fn stream_is_stuck(&self, since: Instant) {
        let state = self.lock();
        if state.taken <= since && state.waiting_for_room + 1 >= state.open.len() {
            self.0.all_stuck.notify_one();
        }
    }

    /// Returns the number of bytes read.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.lock().bytes_read
    }

    /// Records the client's protocol.
    pub(crate) fn set_protocol(&self, protocol: Protocol) {
        self.lock().protocol = protocol;
    }

    /// Returns the connection's lane.
    pub(crate) fn lane(&self) -> Lane {
        Lane::from(self.0.lane.load(Ordering::Relaxed))
    }

    /// Moves the connection to another lane, if the server has lanes. The connection's tasks move after their
    /// next poll.
    pub(crate) fn go_to(&self, lane: Lane) {
        if self.0.limits.lanes.is_some() {
            self.0.lane.store(lane as u8, Ordering::Relaxed);
        }
    }

    /// Makes the connection yield before it continues.
    pub(crate) fn end_turn(&self) {
        self.0.is_turn_over.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection must yield, and resets the flag. Called once after each poll.
    pub(crate) fn take_turn_over(&self) -> bool {
        self.0.is_turn_over.swap(false, Ordering::Relaxed)
    }

    /// Records whether the send buffer is full because the client does not read.
    pub(crate) fn set_write_stalled(&self, is_stalled: bool) {
        self.0.is_write_stalled.store(is_stalled, Ordering::Relaxed);
    }

    /// Returns whether all responses seem to be written: no HTTP/1 response is being sent, and no write is
    /// blocked.
    fn is_all_sent(&self, state: &State) -> bool {
        state.sending.is_empty() && !self.0.is_write_stalled.load(Ordering::Relaxed)
    }

    /// Records that the connection is polled.
    pub(crate) fn begin_turn(&self) {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until a connection that was sent to another lane has moved there. Waiting for the next poll of
    /// this future would not suffice: hyper can poll it several times within one poll of the connection.
    /// Nothing needs to wake the future, because the move polls the connection.
    pub(crate) async fn moved(&self) {
        let turn = || self.0.turns.load(Ordering::Relaxed);
        let begun = turn();
        poll_fn(|_| match turn() == begun {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    /// Records received bytes.
    pub(crate) fn read(&self, bytes: usize) {
        let mut state = self.lock();
        state.bytes_read += bytes as u64;
        if state.open.is_empty() {
            state.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// Records that a response was sent and that the unread part of its request will not be read.
    pub(crate) fn request_left_unread(&self) {
        self.lock().has_unread_request = true;
    }

    /// Returns whether the unread part of a request may still arrive after its response.
    pub(crate) fn has_unread_request(&self) -> bool {
        self.lock().has_unread_request
    }

    /// Returns the number of requests being processed.
    pub(crate) fn open_requests(&self) -> usize {
        self.lock().open.len()
    }

    /// Records a complete request head, and returns the number of its response.
    pub(crate) fn request_started(&self, seat: &Arc<Seat>) -> u64 {
        let mut state = self.lock();
        state.open.push(seat.clone());
        state.had_request = true;
        state.head_since = None;
        state.next_response += 1;
        state.next_response
    }

    /// Records that a response was fully passed to hyper or h2, or was abandoned.
    pub(crate) fn request_ended(&self, response: u64, seat: &Arc<Seat>) {
        let mut state = self.lock();
        let now = self.now_or_when_given(&state);
        state.sending.retain_mut(|sending| {
            sending.is_ended |= sending.response == response;
            !sending.is_ended || sending.pieces > 0
        });
        if let Some(at) = state.open.iter().position(|open| Arc::ptr_eq(open, seat)) {
            state.open.swap_remove(at);
        }
        state.taken = now;
        if state.open.is_empty() {
            state.idle_since = now;
            state.head_since = None;
        }
    }

    /// Records that a piece of a response was passed to hyper. From then on, the client is the bottleneck.
    pub(crate) fn piece_given(&self, response: u64) {
        let (now, turn) = (Instant::now(), self.0.turns.load(Ordering::Relaxed));
        let mut state = self.lock();
        state.given = Some((turn, now));
        let known = state
            .sending
            .iter_mut()
            .find(|sending| sending.response == response);
        match known {
            Some(sending) => {
                if sending.pieces == 0 {
                    sending.since = now;
                }
                sending.pieces += 1;
            }
            None => state.sending.push(Sending {
                response,
                pieces: 1,
                since: now,
                pace: SendPace::default(),
                is_ended: false,
            }),
        }
    }

    /// Records that a piece of `bytes` bytes was written.
    pub(crate) fn piece_left(&self, response: u64, bytes: usize) {
        let mut state = self.lock();
        let now = self.now_or_when_given(&state);
        let place = state
            .sending
            .iter()
            .position(|sending| sending.response == response);
        let Some(place) = place else { return };
        let sending = &mut state.sending[place];
        let waited = now.saturating_duration_since(sending.since);
        sending.pace.taken(bytes, waited, &self.0.limits);
        sending.pieces -= 1;
        sending.since = now;
        if sending.is_ended && sending.pieces == 0 {
            state.sending.swap_remove(place);
        }
    }

    /// Returns the current time. In the turn that passed a piece to hyper, returns the time at which that
    /// happened, so that the clock is read only once for a small response.
    fn now_or_when_given(&self, state: &State) -> Instant {
        match state.given {
            Some((turn, given)) if turn == self.0.turns.load(Ordering::Relaxed) => given,
            _ => Instant::now(),
        }
    }

    /// Returns what the watchdog must do with the connection at the time `now`.
    pub(crate) fn verdict(&self, now: Instant) -> Verdict {
        let limits = &self.0.limits;
        // The watchdog must not sleep too long, because the deadline may move closer in the meantime: an idle
        // client may start a request head and stall.
        let look_again = now
            + limits
                .head_timeout
                .min(limits.write_timeout)
                .min(limits.send_rate_grace)
                / 4;
        let patience = |deadline: Instant, verdict| {
            if now < deadline {
                Verdict::WaitUntil(deadline.min(look_again))
            } else {
                verdict
            }
        };
        let state = self.lock();
        let waiting = state.sending.iter().filter(|sending| sending.pieces > 0);
        let deadlines = waiting.map(|sending| sending.since + sending.pace.patience(limits));
        if let Some(deadline) = deadlines.min() {
            return patience(deadline, Verdict::Cut("the client does not read its response"));
        }
        if !state.open.is_empty() {
            // While requests are open, every phase that a client can delay has its own deadline elsewhere.
            return Verdict::WaitUntil(look_again);
        }
        let (since, timeout, verdict) = match state.protocol {
            Protocol::Http1 | Protocol::Either => match state.head_since {
                Some(since) => (
                    since,
                    limits.head_timeout,
                    Verdict::Cut("a request's head arrived too slowly"),
                ),
                None if !state.had_request => (
                    state.idle_since,
                    limits.head_timeout,
                    Verdict::Cut("the client sent nothing"),
                ),
                None => (state.idle_since, limits.idle_timeout, Verdict::Close),
            },
            Protocol::Http2 if state.bytes_read < HTTP2_OPENING => (
                state.idle_since,
                limits.head_timeout,
                Verdict::Cut("the client did not open its connection"),
            ),
            Protocol::Http2 => (
                state.idle_since,
                limits.idle_timeout.max(limits.head_timeout),
                Verdict::Close,
            ),
        };
        patience(since + timeout, verdict)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

impl Occupant for Activity {
    fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        self.idles_since(&state)
            .filter(|_| state.asked_to_close.is_none())
    }

    fn ask_to_close(&self) {
        self.lock().asked_to_close = Some(Instant::now());
        self.0.asked_to_close.notify_one();
    }

    fn is_about_to_close(&self, now: Instant) -> bool {
        /// Maximum time that a connection may take to close after it was asked to.
        const LONGEST: Duration = Duration::from_secs(1);
        let asked = self.lock().asked_to_close;
        asked.is_some_and(|asked| now.saturating_duration_since(asked) < LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(activity: &Activity, elapsed: Duration) -> Verdict {
        activity.verdict(Instant::now() + elapsed)
    }

    fn waits(activity: &Activity, elapsed: Duration) -> bool {
        matches!(after(activity, elapsed), Verdict::WaitUntil(_))
    }

    #[test]
    fn a_silent_client_and_half_a_head_are_cut_after_the_head_timeout() {
        for half_a_head in [false, true] {
            let activity = Activity::new(Protocol::Http1, &ConnectionLimits::default());
            if half_a_head {
                activity.read(10);
            }
            assert!(waits(&activity, 19 * SECOND));
            assert!(matches!(after(&activity, 21 * SECOND), Verdict::Cut(_)));
        }
    }

    #[test]
    fn an_idle_connection_is_closed_after_the_idle_timeout() {
        let activity = Activity::new(Protocol::Http1, &ConnectionLimits::default());
        activity.read(10);
        let seat = Arc::default();
        let response = activity.request_started(&seat);
        assert!(
            waits(&activity, 1000 * SECOND),
            "a request in work has its own deadline"
        );
        activity.request_ended(response, &seat);
        assert!(waits(&activity, 74 * SECOND));
        assert_eq!(after(&activity, 76 * SECOND), Verdict::Close);
        // The next head's timeout starts with its first byte.
        activity.read(1);
        assert!(matches!(after(&activity, 21 * SECOND), Verdict::Cut(_)));
    }

    #[test]
    fn an_http2_preface_alone_is_no_connection() {
        let activity = Activity::new(Protocol::Http2, &ConnectionLimits::default());
        activity.read(24);
        assert!(matches!(after(&activity, 21 * SECOND), Verdict::Cut(_)));
        activity.read(9);
        assert!(waits(&activity, 74 * SECOND));
        assert_eq!(after(&activity, 76 * SECOND), Verdict::Close);
    }

    #[test]
    fn a_client_that_does_not_read_is_cut() {
        let activity = Activity::new(Protocol::Http1, &ConnectionLimits::default());
        activity.read(100);
        let seats = [Arc::default(), Arc::default()];
        let [stuck, other] = seats.each_ref().map(|seat| activity.request_started(seat));
        activity.piece_given(stuck);
        activity.piece_given(other);
        activity.piece_left(other, 10);
        assert!(waits(&activity, 29 * SECOND));
        assert!(matches!(after(&activity, 31 * SECOND), Verdict::Cut(_)));
        // The response was fully passed to hyper, but is not written yet.
        activity.request_ended(stuck, &seats[0]);
        activity.request_ended(other, &seats[1]);
        assert!(matches!(after(&activity, 31 * SECOND), Verdict::Cut(_)));
        activity.piece_left(stuck, 10);
        assert!(waits(&activity, 74 * SECOND));
    }
}
