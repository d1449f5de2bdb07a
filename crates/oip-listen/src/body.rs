//! Request bodies with a minimum rate, and response bodies that report when they are written.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use h2::{Reason, RecvStream};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{
    ConnectionLimits,
    activity::Activity,
    leftover::Leftover,
    stream_slots::{Seat, SlotGuard, Wait, Waiter},
};

pin_project! {
    /// A request body that fails when it arrives too slowly.
    ///
    /// The body fails with an [`std::io::Error`] of kind `TimedOut`.
    pub struct RequestBody {
        inner: Inner,
        leftover: Option<Leftover>,
        pace: Pace,
        // Deadline of the next frame; `None` until the body has waited for a frame.
        deadline: Option<Pin<Box<Sleep>>>,
        is_waiting: bool,
        is_conversation: bool,
        seat: Arc<Seat>,
    }

    impl PinnedDrop for RequestBody {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if *this.is_waiting {
                this.seat.goes_on(Wait::Body);
            }
            if let (Some(leftover), Inner::Http1(rest)) = (this.leftover, this.inner)
                && let Some(rest) = rest.take().filter(|rest| !rest.is_end_stream())
            {
                leftover.put(rest);
            }
        }
    }
}

/// The body of either protocol.
enum Inner {
    /// `None` after the body was dropped before its end: it was moved into `leftover`, which drains it.
    Http1(Option<Incoming>),
    Http2(StreamBody),
}

/// The body of an HTTP/2 stream.
struct StreamBody {
    stream: RecvStream,
    /// Number of bytes still to come, if the request head declares a length.
    left: Option<u64>,
    is_data_over: bool,
}

impl StreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        // A peer that needs no more data resets the stream with this code (RFC 9113, 8.1).
        let is_enough = |error: &h2::Error| error.reason() == Some(Reason::NO_ERROR);
        if !self.is_data_over {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(bytes)) => {
                    // Releasing fails only if more bytes are released than were received.
                    let _ = self.stream.flow_control().release_capacity(bytes.len());
                    self.left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Err(error)) if is_enough(&error) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.is_data_over = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) if is_enough(&error) => None,
            Err(error) => Some(Err(error)),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// The required pace of a body.
struct Pace {
    gap_timeout: Duration,
    min_rate: u64,
    grace: Duration,
    /// Time spent waiting for the client. The time that the service takes is not included.
    waited: Duration,
    waiting_since: Option<Instant>,
    received: u64,
}

impl RequestBody {
    /// Creates the body of an HTTP/1 request. If the body is dropped before its end, `leftover` receives its
    /// unread part.
    pub(crate) fn http1(inner: Incoming, path: &str, report: &Report, leftover: Option<Leftover>) -> Self {
        Self::new(Inner::Http1(Some(inner)), path, report, leftover)
    }

    /// Creates the body of an HTTP/2 request. `len` is the length that the request head declares, if any.
    pub(crate) fn http2(stream: RecvStream, len: Option<u64>, path: &str, report: &Report) -> Self {
        let inner = Inner::Http2(StreamBody {
            stream,
            left: len,
            is_data_over: false,
        });
        Self::new(inner, path, report, None)
    }

    fn new(inner: Inner, path: &str, report: &Report, leftover: Option<Leftover>) -> Self {
        let limits = report.limits();
        let pace = Pace {
            gap_timeout: limits.body_gap_timeout,
            min_rate: limits.min_body_rate,
            grace: limits.body_rate_grace,
            waited: Duration::ZERO,
            waiting_since: None,
            received: 0,
        };
        Self {
            inner,
            leftover,
            pace,
            deadline: None,
            is_waiting: false,
            is_conversation: limits.conversations.contains(&path),
            seat: report.seat.clone(),
        }
    }
}

impl Pace {
    /// Returns the deadline of the next frame.
    fn next_deadline(&mut self) -> Instant {
        let now = Instant::now();
        self.waiting_since = Some(now);
        let by_gap = now + self.gap_timeout;
        if self.min_rate == 0 {
            return by_gap;
        }
        // Time that a client at the minimum rate needs for the bytes received so far.
        let earned = Duration::from_secs_f64(self.received as f64 / self.min_rate as f64);
        let by_rate = now + (self.grace + earned).saturating_sub(self.waited);
        by_gap.min(by_rate)
    }

    fn frame_came(&mut self, bytes: usize) {
        self.received += bytes as u64;
        self.waited += self
            .waiting_since
            .take()
            .map_or(Duration::ZERO, |since| since.elapsed());
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.project();
        let polled = match this.inner {
            Inner::Http1(None) => return Poll::Ready(None),
            Inner::Http1(Some(body)) => {
                let polled = Pin::new(body).poll_frame(cx);
                polled.map(|frame| frame.map(|frame| frame.map_err(Self::Error::from)))
            }
            Inner::Http2(body) => {
                let polled = body.poll_frame(cx);
                polled.map(|frame| frame.map(|frame| frame.map_err(Self::Error::from)))
            }
        };
        if let Poll::Ready(frame) = polled {
            let bytes = frame
                .as_ref()
                .and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
            this.pace.frame_came(bytes.unwrap_or(0));
            if std::mem::take(this.is_waiting) {
                this.seat.goes_on(Wait::Body);
            }
            return Poll::Ready(frame);
        }
        if *this.is_conversation {
            return Poll::Pending;
        }
        if !*this.is_waiting {
            this.seat.waits(Wait::Body);
        }
        let sleep = match this.deadline {
            Some(sleep) if *this.is_waiting => sleep,
            Some(sleep) => {
                sleep.as_mut().reset(this.pace.next_deadline());
                sleep
            }
            none => none.insert(Box::pin(sleep_until(this.pace.next_deadline()))),
        };
        *this.is_waiting = true;
        let reason = if this.seat.poll_revoked(Waiter::Service, cx).is_ready() {
            "the request's body arrived too slowly while other requests waited"
        } else {
            ready!(sleep.as_mut().poll(cx));
            "the request's body arrived too slowly"
        };
        let error = io::Error::new(io::ErrorKind::TimedOut, reason);
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Http1(body) => body.as_ref().is_none_or(Incoming::is_end_stream),
            Inner::Http2(body) => body.stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Http1(body) => body.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint),
            Inner::Http2(body) => body.size_hint(),
        }
    }
}

pin_project! {
    /// The body of an HTTP/1 response, split into pieces of bounded size that report when they are written.
    ///
    /// Pieces are slices when the service's body yields [`Bytes`], so nothing is copied.
    pub struct ResponseBody<B> {
        #[pin]
        inner: B,
        // The unsent part of a frame that is larger than one piece.
        rest: Bytes,
        report: Report,
    }
}

/// Maximum size of a piece in bytes.
const PIECE: usize = 256 << 10;

/// Reports the events of one request to its connection. Dropping the report ends the request.
pub(crate) struct Report {
    activity: Activity,
    response: u64,
    seat: Arc<Seat>,
    /// Slot of the stream; `None` for HTTP/1.
    place: Option<SlotGuard>,
}

impl Report {
    /// Creates the report of a request, which keeps its slot until its response was passed to hyper or h2.
    pub(crate) fn new(activity: &Activity, seat: Arc<Seat>, place: Option<SlotGuard>) -> Self {
        Self {
            activity: activity.clone(),
            response: activity.request_started(&seat),
            seat,
            place,
        }
    }

    pub(crate) fn limits(&self) -> &ConnectionLimits {
        self.activity.limits()
    }

    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// HTTP/2: reports that the stream is waiting for flow-control window.
    pub(crate) fn waits_for_room(&self) {
        self.activity.waits_for_room();
        self.seat.waits(Wait::Room);
    }

    /// HTTP/2: reports that the stream was given flow-control window (`has_room`), or stopped waiting for it.
    pub(crate) fn waits_no_more(&self, has_room: bool) {
        self.seat.goes_on(Wait::Room);
        self.activity.waits_no_more(has_room);
    }

    /// HTTP/2: reports that the stream timed out, because it was given no flow-control window since `since`.
    pub(crate) fn is_stuck(&self, since: Instant) {
        self.activity.stream_is_stuck(since);
        if let Some(place) = &self.place {
            place.note_unread();
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.activity.request_ended(self.response, &self.seat);
    }
}

impl Report {
    /// Wraps `bytes` so that the report is notified when they are written.
    fn piece(&self, bytes: Bytes) -> Bytes {
        self.activity.piece_given(self.response);
        Bytes::from_owner(Piece {
            bytes,
            activity: self.activity.clone(),
            response: self.response,
        })
    }
}

/// A piece of a response, dropped once it is written or abandoned.
struct Piece {
    bytes: Bytes,
    activity: Activity,
    response: u64,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.activity.piece_left(self.response, self.bytes.len());
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn new(inner: B, report: Report) -> Self {
        Self {
            inner,
            rest: Bytes::new(),
            report,
        }
    }
}

impl<B: Body> Body for ResponseBody<B>
where
    B::Data: Buf,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if this.rest.is_empty() {
            let frame = match ready!(this.inner.poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            let frame = frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
            match frame.into_data() {
                Ok(data) => *this.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(this.report.piece(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.inner.size_hint());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
