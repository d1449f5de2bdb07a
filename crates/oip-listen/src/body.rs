//! Bodies: requests that must come at a pace, answers whose end the connection hears of.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep_until},
};

use crate::{Limits, Protocol, activity::Activity, leftover::Leftover};

pin_project! {
    /// A request's body that fails when it comes too slowly.
    ///
    /// The failure is an [`std::io::Error`] of kind `TimedOut`.
    pub struct RequestBody {
        // Taken out when it is dropped before its end.
        inner: Option<Incoming>,
        leftover: Option<Leftover>,
        pace: Pace,
        // The time at which the next frame must be there, once a frame was waited for.
        deadline: Option<Pin<Box<Sleep>>>,
        is_waiting: bool,
        is_conversation: bool,
    }

    impl PinnedDrop for RequestBody {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let (Some(leftover), Some(rest)) = (this.leftover, this.inner.take())
                && !rest.is_end_stream()
            {
                leftover.put(rest);
            }
        }
    }
}

/// How fast a body must come.
struct Pace {
    gap_timeout: Duration,
    min_rate: u64,
    grace: Duration,
    /// Time spent waiting for the client; the service's own time does not count.
    waited: Duration,
    waiting_since: Option<Instant>,
    received: u64,
}

impl RequestBody {
    /// `leftover` gets what is not read.
    pub(crate) fn new(inner: Incoming, path: &str, limits: &Limits, leftover: Option<Leftover>) -> Self {
        let pace = Pace {
            gap_timeout: limits.body_gap_timeout,
            min_rate: limits.min_body_rate,
            grace: limits.body_rate_grace,
            waited: Duration::ZERO,
            waiting_since: None,
            received: 0,
        };
        Self {
            inner: Some(inner),
            leftover,
            pace,
            deadline: None,
            is_waiting: false,
            is_conversation: limits.conversations.contains(&path),
        }
    }
}

impl Pace {
    /// When the next frame must be there at the latest.
    fn next_deadline(&mut self) -> Instant {
        let now = Instant::now();
        self.waiting_since = Some(now);
        let by_gap = now + self.gap_timeout;
        if self.min_rate == 0 {
            return by_gap;
        }
        // The received bytes allow so many seconds of waiting.
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
        let Some(inner) = this.inner else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) {
            let bytes = frame
                .as_ref()
                .and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
            this.pace.frame_came(bytes.unwrap_or(0));
            *this.is_waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if *this.is_conversation {
            return Poll::Pending;
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
        ready!(sleep.as_mut().poll(cx));
        let error = io::Error::new(io::ErrorKind::TimedOut, "the request's body came too slowly");
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

pin_project! {
    /// An answer's body, in pieces of bounded size that report when they have left.
    ///
    /// Pieces are slices where the service's body gives [`Bytes`], so nothing is copied.
    pub struct ResponseBody<B> {
        #[pin]
        inner: B,
        // The rest of a frame that was too large for one piece.
        rest: Bytes,
        piece_len: usize,
        report: Report,
    }
}

/// Bytes of a piece. Over HTTP/2 each stream has one piece under way beyond what its client has made room for.
const fn piece_len(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Http1 | Protocol::Either => 256 << 10,
        Protocol::Http2 => 64 << 10,
    }
}

/// Tells the connection about one answer, and that it is over when it is dropped.
pub(crate) struct Report {
    activity: Activity,
    response: u64,
    _room: Option<OwnedSemaphorePermit>,
}

impl Report {
    /// Of an answer that keeps its room until it is over.
    pub(crate) fn new(activity: &Activity, room: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            activity: activity.clone(),
            response: activity.request_started(),
            _room: room,
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.activity.request_ended(self.response);
    }
}

impl Report {
    /// A piece that reports when it has left.
    fn piece(&self, bytes: Bytes) -> Bytes {
        self.activity.piece_given(self.response);
        Bytes::from_owner(Piece {
            bytes,
            activity: self.activity.clone(),
            response: self.response,
        })
    }
}

/// A piece of an answer, dropped once it is written or given up.
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
    pub(crate) fn new(inner: B, report: Report, protocol: Protocol) -> Self {
        Self {
            inner,
            rest: Bytes::new(),
            piece_len: piece_len(protocol),
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
        let piece = this.rest.split_to(this.rest.len().min(*this.piece_len));
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
