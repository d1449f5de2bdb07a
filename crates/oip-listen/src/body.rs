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
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{Limits, activity::Activity};

pin_project! {
    /// A request's body that fails when it comes too slowly.
    ///
    /// The failure is an [`std::io::Error`] of kind `TimedOut`.
    pub struct RequestBody {
        #[pin]
        inner: Incoming,
        pace: Pace,
        // The time at which the next frame must be there; set when a frame is waited for.
        #[pin]
        deadline: Sleep,
        is_waiting: bool,
        is_conversation: bool,
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
    pub(crate) fn new(inner: Incoming, path: &str, limits: &Limits) -> Self {
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
            pace,
            deadline: sleep_until(Instant::now()),
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
        // What has come is worth so many seconds of waiting.
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
        let mut this = self.project();
        if let Poll::Ready(frame) = this.inner.poll_frame(cx) {
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
        if !*this.is_waiting {
            *this.is_waiting = true;
            this.deadline.as_mut().reset(this.pace.next_deadline());
        }
        ready!(this.deadline.poll(cx));
        let error = io::Error::new(io::ErrorKind::TimedOut, "the request's body came too slowly");
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

pin_project! {
    /// An answer's body that reports how it is taken.
    pub struct ResponseBody<B> {
        #[pin]
        inner: B,
        report: Report,
    }
}

/// Tells the connection about one answer, and that it is over when it is dropped.
pub(crate) struct Report {
    activity: Activity,
    response: u64,
}

impl Report {
    pub(crate) fn new(activity: &Activity) -> Self {
        Self {
            activity: activity.clone(),
            response: activity.request_started(),
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.activity.request_ended(self.response);
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn new(inner: B, report: Report) -> Self {
        Self { inner, report }
    }
}

impl<B: Body> Body for ResponseBody<B>
where
    B::Data: Buf,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        this.report.activity.part_wanted(this.report.response);
        let frame = ready!(this.inner.poll_frame(cx));
        if frame.is_some() {
            this.report.activity.part_given(this.report.response);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
