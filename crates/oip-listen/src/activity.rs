use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::{Limits, Protocol};

/// What happens on one connection, as far as patience with it is concerned.
///
/// The connection's reader, service and bodies report here; its watchdog asks until when to be patient.
#[derive(Clone, Debug)]
pub(crate) struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    protocol: Protocol,
    bytes_read: u64,
    /// Requests whose answers are not sent yet.
    open_requests: usize,
    /// Since when there was no open request.
    idle_since: Instant,
    /// When the first byte of a head came that is not complete yet.
    head_since: Option<Instant>,
    /// Whether any request was read.
    had_request: bool,
    /// Answers of which a part was given out to be sent and the client has not made room for the next, with the time
    /// since when.
    waiting_for_reader: Vec<(u64, Instant)>,
    next_response: u64,
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
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self(Arc::new(Mutex::new(State {
            protocol,
            bytes_read: 0,
            open_requests: 0,
            idle_since: Instant::now(),
            head_since: None,
            had_request: false,
            waiting_for_reader: Vec::new(),
            next_response: 0,
        })))
    }

    /// Bytes came in.
    pub(crate) fn read(&self, bytes: usize) {
        let mut state = self.lock();
        state.bytes_read += bytes as u64;
        if state.open_requests == 0 {
            state.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// Whether a request is in work.
    pub(crate) fn has_open_requests(&self) -> bool {
        self.lock().open_requests > 0
    }

    /// A request's head is complete. Returns the number under which its answer is known.
    pub(crate) fn request_started(&self) -> u64 {
        let mut state = self.lock();
        state.open_requests += 1;
        state.had_request = true;
        state.head_since = None;
        state.next_response += 1;
        state.next_response
    }

    /// A request's answer was sent or given up.
    pub(crate) fn request_ended(&self, response: u64) {
        let mut state = self.lock();
        state
            .waiting_for_reader
            .retain(|(waiting, _)| *waiting != response);
        state.open_requests = state.open_requests.saturating_sub(1);
        if state.open_requests == 0 {
            state.idle_since = Instant::now();
            state.head_since = None;
        }
    }

    /// A part of an answer was given out; from now on it is the client's turn.
    pub(crate) fn part_given(&self, response: u64) {
        let mut state = self.lock();
        state
            .waiting_for_reader
            .retain(|(waiting, _)| *waiting != response);
        state.waiting_for_reader.push((response, Instant::now()));
    }

    /// The client made room: from now on it is the service's turn.
    pub(crate) fn part_wanted(&self, response: u64) {
        self.lock()
            .waiting_for_reader
            .retain(|(waiting, _)| *waiting != response);
    }

    /// What to do with the connection at `now`.
    pub(crate) fn verdict(&self, now: Instant, limits: &Limits) -> Verdict {
        // A deadline can come nearer while it is waited for: an idle client starts a head and stops in the middle.
        let look_again = now + limits.head_timeout.min(limits.write_timeout) / 4;
        let patience = |deadline: Instant, verdict| {
            if now < deadline {
                Verdict::WaitUntil(deadline.min(look_again))
            } else {
                verdict
            }
        };
        let state = self.lock();
        if let Some((_, since)) = state.waiting_for_reader.first() {
            let deadline = *since + limits.write_timeout;
            return patience(deadline, Verdict::Cut("the client does not read its answer"));
        }
        if state.open_requests > 0 {
            // Whatever takes long now has a deadline of its own.
            return Verdict::WaitUntil(look_again);
        }
        let (since, timeout, verdict) = match state.protocol {
            Protocol::Http1 => match state.head_since {
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(activity: &Activity, elapsed: Duration) -> Verdict {
        activity.verdict(Instant::now() + elapsed, &Limits::default())
    }

    fn waits(activity: &Activity, elapsed: Duration) -> bool {
        matches!(after(activity, elapsed), Verdict::WaitUntil(_))
    }

    #[test]
    fn a_silent_client_and_half_a_head_are_cut_after_the_head_timeout() {
        for half_a_head in [false, true] {
            let activity = Activity::new(Protocol::Http1);
            if half_a_head {
                activity.read(10);
            }
            assert!(waits(&activity, 19 * SECOND));
            assert!(matches!(after(&activity, 21 * SECOND), Verdict::Cut(_)));
        }
    }

    #[test]
    fn an_idle_connection_is_closed_after_the_idle_timeout() {
        let activity = Activity::new(Protocol::Http1);
        activity.read(10);
        let response = activity.request_started();
        assert!(
            waits(&activity, 1000 * SECOND),
            "a request in work has its own deadline"
        );
        activity.request_ended(response);
        assert!(waits(&activity, 74 * SECOND));
        assert_eq!(after(&activity, 76 * SECOND), Verdict::Close);
        // The next head has its time from its first byte on.
        activity.read(1);
        assert!(matches!(after(&activity, 21 * SECOND), Verdict::Cut(_)));
    }

    #[test]
    fn an_http2_preface_alone_is_no_connection() {
        let activity = Activity::new(Protocol::Http2);
        activity.read(24);
        assert!(matches!(after(&activity, 21 * SECOND), Verdict::Cut(_)));
        activity.read(9);
        assert!(waits(&activity, 74 * SECOND));
        assert_eq!(after(&activity, 76 * SECOND), Verdict::Close);
    }

    #[test]
    fn a_client_that_does_not_read_is_cut() {
        let activity = Activity::new(Protocol::Http2);
        let (stuck, other) = (activity.request_started(), activity.request_started());
        activity.part_given(stuck);
        activity.part_given(other);
        activity.part_wanted(other);
        assert!(waits(&activity, 29 * SECOND));
        assert!(matches!(after(&activity, 31 * SECOND), Verdict::Cut(_)));
        activity.request_ended(stuck);
        assert!(waits(&activity, 1000 * SECOND));
    }
}
