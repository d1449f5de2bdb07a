use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    ConnectionLimits, Protocol,
    connections::Occupant,
    lanes::Lane,
    places::{Seat, revoke_all},
    send_pace::SendPace,
};

/// The activity of one connection, as far as timeouts need it.
///
/// The connection's reader, service and bodies report here; its watchdog asks until when to be patient.
#[derive(Clone, Debug)]
pub(crate) struct Activity(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Among all connections of the process.
    number: u64,
    limits: ConnectionLimits,
    state: Mutex<State>,
    /// Somebody else needs the connection's place.
    asked_to_close: Notify,
    /// Its client reads nothing, whichever stream it is.
    all_stuck: Notify,
    /// A [`Lane`].
    lane: AtomicU8,
    /// How often the connection was polled.
    turns: AtomicU32,
    /// Whether it has used up its turn, however much there is to do.
    is_turn_over: AtomicBool,
    /// Whether bytes wait to be written that the client does not take.
    is_write_stalled: AtomicBool,
}

#[derive(Debug)]
struct State {
    protocol: Protocol,
    bytes_read: u64,
    /// Requests whose answers are not sent yet.
    open: Vec<Arc<Seat>>,
    /// Since when there was no open request.
    idle_since: Instant,
    /// When the first byte of a head came that is not complete yet.
    head_since: Option<Instant>,
    /// Whether any request was read.
    had_request: bool,
    /// Whether a request was answered before all of it was read, so that the connection ends.
    has_unread_request: bool,
    /// When it was asked to make room for another connection.
    asked_to_close: Option<Instant>,
    /// Answers that are being sent over HTTP/1.
    sending: Vec<Sending>,
    /// Over HTTP/2, the open requests whose client has not made room for the next bytes of their answer.
    waiting_for_room: usize,
    /// When the client last took something of an answer over HTTP/2 that it had to make room for, or all of one.
    taken: Instant,
    /// When a piece was given out last, and in which turn. What happens to it in that turn happens then.
    given: Option<(u32, Instant)>,
    next_response: u64,
}

/// An answer that is being sent.
#[derive(Debug)]
struct Sending {
    response: u64,
    /// Pieces that were given out and have not left yet, and since when the client is waited for.
    pieces: usize,
    since: Instant,
    pace: SendPace,
    /// Whether all of it was given out.
    is_ended: bool,
}

/// What to do with a connection now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing; look again at this time.
    WaitUntil(Instant),
    /// It idles: end it in good manners.
    Close,
    /// It is stuck: end it.
    Cut(&'static str),
}

/// An HTTP/2 client's preface and the header of its first frame: less than that is no connection.
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
        Self(Arc::new(Shared {
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

    /// The handshake is over, and the client has said nothing yet.
    pub(crate) fn opened(&self, protocol: Protocol) {
        let mut state = self.lock();
        state.protocol = protocol;
        state.idle_since = Instant::now();
    }

    /// Waits until it is asked to make room.
    pub(crate) async fn asked_to_close(&self) {
        self.0.asked_to_close.notified().await;
    }

    /// The connection's number, which no other one has.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Whether a connection that was asked to make room still has nothing to do. Otherwise it stays. The requests that wait for their
    /// client lose their places.
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
            // Its request is no stream, and the connection counts.
            false => _ = revoke_all(&open),
        }
        self.0.limits.connections.note_evicted();
        true
    }

    /// Since when there is nothing to do, but to wait for the client.
    fn idles_since(&self, state: &State) -> Option<Instant> {
        if !self.is_all_sent(state) {
            return None;
        }
        let mut of_requests = state.open.iter().map(|seat| seat.idle_since(state.idle_since));
        of_requests.try_fold(state.idle_since, |latest, since| Some(latest.max(since?)))
    }

    /// Whether a request is in work, and does not wait for its client.
    pub(crate) fn is_working(&self) -> bool {
        let state = self.lock();
        let mut open = state.open.iter();
        open.any(|seat| seat.idle_since(state.idle_since).is_none())
    }

    pub(crate) fn limits(&self) -> &ConnectionLimits {
        &self.0.limits
    }

    /// Waits until a stream is reset for not being read, and no other one is read either.
    pub(crate) async fn all_stuck(&self) {
        self.0.all_stuck.notified().await;
    }

    /// The client of a stream has made no room for the next bytes of its answer.
    pub(crate) fn waits_for_room(&self) {
        self.lock().waiting_for_room += 1;
    }

    /// It has made some, or that stream waits no longer.
    pub(crate) fn waits_no_more(&self, has_room: bool) {
        let mut state = self.lock();
        state.waiting_for_room = state.waiting_for_room.saturating_sub(1);
        if has_room {
            state.taken = Instant::now();
        }
    }

    /// A stream, which is still open and waits no more, is reset: its client has made no room since then.
    pub(crate) fn stream_is_stuck(&self, since: Instant) {
        let state = self.lock();
        if state.taken <= since && state.waiting_for_room + 1 >= state.open.len() {
            self.0.all_stuck.notify_one();
        }
    }

    /// Bytes that came in.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.lock().bytes_read
    }

    /// Notes the protocol that the client speaks.
    pub(crate) fn set_protocol(&self, protocol: Protocol) {
        self.lock().protocol = protocol;
    }

    /// Where the connection is.
    pub(crate) fn lane(&self) -> Lane {
        Lane::from(self.0.lane.load(Ordering::Relaxed))
    }

    /// Sends the connection to another lane, if there are any; its tasks go there when they have been polled.
    pub(crate) fn go_to(&self, lane: Lane) {
        if self.0.limits.lanes.is_some() {
            self.0.lane.store(lane as u8, Ordering::Relaxed);
        }
    }

    /// The connection has done enough for now: others have their turn before it goes on.
    pub(crate) fn end_turn(&self) {
        self.0.is_turn_over.store(true, Ordering::Relaxed);
    }

    /// Whether others have their turn now; asked once after each poll.
    pub(crate) fn take_turn_over(&self) -> bool {
        self.0.is_turn_over.swap(false, Ordering::Relaxed)
    }

    /// Notes whether bytes wait to be written that the client does not take.
    pub(crate) fn set_write_stalled(&self, is_stalled: bool) {
        self.0.is_write_stalled.store(is_stalled, Ordering::Relaxed);
    }

    /// Whether all answers have left, as far as is known.
    fn is_all_sent(&self, state: &State) -> bool {
        state.sending.is_empty() && !self.0.is_write_stalled.load(Ordering::Relaxed)
    }

    /// The connection is polled.
    pub(crate) fn begin_turn(&self) {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the connection is polled again, so that it has gone where it was sent. hyper may poll one of its futures
    /// several times in a poll of its own.
    pub(crate) async fn next_turn(&self) {
        let turn = || self.0.turns.load(Ordering::Relaxed);
        let begun = turn();
        poll_fn(|cx| {
            if turn() != begun {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Bytes came in.
    pub(crate) fn read(&self, bytes: usize) {
        let mut state = self.lock();
        state.bytes_read += bytes as u64;
        if state.open.is_empty() {
            state.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// A request was answered, and the rest of it will not be read.
    pub(crate) fn request_left_unread(&self) {
        self.lock().has_unread_request = true;
    }

    /// Whether the rest of a request that was answered may still be coming.
    pub(crate) fn has_unread_request(&self) -> bool {
        self.lock().has_unread_request
    }

    /// Requests in work.
    pub(crate) fn open_requests(&self) -> usize {
        self.lock().open.len()
    }

    /// A request's head is complete. Returns the number under which its answer is known.
    pub(crate) fn request_started(&self, seat: &Arc<Seat>) -> u64 {
        let mut state = self.lock();
        state.open.push(seat.clone());
        state.had_request = true;
        state.head_since = None;
        state.next_response += 1;
        state.next_response
    }

    /// A request's answer was given out to be sent, or given up.
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

    /// A piece of an answer was given out; from now on it is the client's turn.
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

    /// A piece of so many bytes has left.
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

    /// The time; in the turn in which a piece was given out, the time of that, so that small answers look at the clock once.
    fn now_or_when_given(&self, state: &State) -> Instant {
        match state.given {
            Some((turn, given)) if turn == self.0.turns.load(Ordering::Relaxed) => given,
            _ => Instant::now(),
        }
    }

    /// What to do with the connection at `now`.
    pub(crate) fn verdict(&self, now: Instant) -> Verdict {
        let limits = &self.0.limits;
        // A deadline can come nearer while it is waited for: an idle client starts a head and stops in the middle.
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
            return patience(deadline, Verdict::Cut("the client does not read its answer"));
        }
        if !state.open.is_empty() {
            // Whatever takes long now has a deadline of its own.
            return Verdict::WaitUntil(look_again);
        }
        let (since, timeout, verdict) = match state.protocol {
            Protocol::Http1 | Protocol::Either => match state.head_since {
                Some(since) => (
                    since,
                    limits.head_timeout,
                    Verdict::Cut("a request's head came too slowly"),
                ),
                None if !state.had_request => (
                    state.idle_since,
                    limits.head_timeout,
                    Verdict::Cut("the client said nothing"),
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
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        /// By then it is closed, or has work to do.
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
        // The next head has its time from its first byte on.
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
        // All of it was given out; it has not left yet.
        activity.request_ended(stuck, &seats[0]);
        activity.request_ended(other, &seats[1]);
        assert!(matches!(after(&activity, 31 * SECOND), Verdict::Cut(_)));
        activity.piece_left(stuck, 10);
        assert!(waits(&activity, 74 * SECOND));
    }
}
