//! One HTTP/2 stream, from its request head to the last byte of its response.
//!
//! A response is passed to h2 only as far as the flow-control window allows. A stream whose client does not
//! read can therefore be reset at any time, and its memory is freed.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use atomic_waker::AtomicWaker;
use bytes::{Buf, Bytes};
use h2::{Reason, SendStream, server::SendResponse};
use http::{
    Response, Version,
    header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, TRANSFER_ENCODING, UPGRADE},
};
use http_body::Body;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{body::Report, date, send_pace::SendPace, stream_slots::Waiter};

/// The reason why a stream ended before its whole response was passed to h2.
enum End {
    /// The client reset the stream or disconnected.
    Gone,
    /// The service aborted its response.
    Broken,
    /// The client did not read the response.
    Stuck,
    /// The stream waited for its client, and another stream needed its slot.
    Evicted,
}

/// Calls the service and sends its response, as long as the client is connected and reads the response.
pub(crate) async fn answer<F, B>(service: F, mut respond: SendResponse<Bytes>, report: Report)
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body,
    B::Data: Buf,
{
    let mut service = pin!(service);
    let response = poll_fn(|cx| {
        if report.seat().poll_revoked(Waiter::Connection, cx).is_ready() {
            return Poll::Ready(Err(End::Evicted));
        }
        if let Poll::Ready(Ok(response)) = service.as_mut().poll(cx) {
            return Poll::Ready(Ok(response));
        }
        // Resets are checked for only while the service runs; a response that is ready is sent anyway.
        respond.poll_reset(cx).map(|_| Err(End::Gone))
    });
    let response = match response.await {
        Ok(response) => response,
        Err(end) => {
            if matches!(end, End::Evicted) {
                // The request is not complete, so the service has not processed it.
                respond.send_reset(Reason::REFUSED_STREAM);
            }
            return;
        }
    };
    let (head, body) = response.into_parts();
    let mut response = Response::from_parts(head, ());
    let is_end = body.is_end_stream();
    complete(&mut response, body.size_hint().exact().filter(|_| !is_end));
    let Ok(stream) = respond.send_response(response, is_end) else {
        respond.send_reset(Reason::INTERNAL_ERROR);
        return;
    };
    if is_end {
        return;
    }
    let mut sender = Sender {
        stream,
        given: Arc::new(PendingResponse {
            report,
            is_waited_for: AtomicBool::new(false),
            sent: Arc::default(),
        }),
        pace: SendPace::default(),
        patience: None,
        last_words: None,
    };
    let (mut stream, end) = match sender.send(pin!(body)).await {
        Ok(()) => sender.until_sent().await,
        Err(end) => (sender.stream, Err(end)),
    };
    match end {
        Ok(()) | Err(End::Gone) => {}
        Err(End::Broken) => stream.send_reset(Reason::INTERNAL_ERROR),
        Err(End::Stuck | End::Evicted) => stream.send_reset(Reason::CANCEL),
    }
}

/// Converts a response head to HTTP/2.
fn complete(response: &mut Response<()>, len: Option<u64>) {
    *response.version_mut() = Version::HTTP_2;
    let headers = response.headers_mut();
    // Headers that describe an HTTP/1 connection; they are malformed in HTTP/2 (RFC 9113, 8.2.2).
    const OF_CONNECTIONS: [HeaderName; 5] = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in &OF_CONNECTIONS {
        headers.remove(name);
    }
    if let Some(len) = len {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| len.into());
    }
    headers.entry(DATE).or_insert_with(date::now);
}

/// Size of the flow-control window that a response requests at a time, in bytes.
const PIECE: usize = 64 << 10;

/// A response that was passed to h2, tracked until its last byte is written. The client may shrink its window
/// again, so h2 may not be able to write all bytes.
struct PendingResponse {
    report: Report,
    /// Whether all remaining bytes were passed to h2, and the sender is waiting for them to be written.
    is_waited_for: AtomicBool,
    sent: Arc<AtomicWaker>,
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if *self.is_waited_for.get_mut() {
            self.report.waits_no_more(true);
        }
        self.sent.wake();
    }
}

/// Bytes of a response; h2 drops them once they are written.
struct Piece {
    bytes: Bytes,
    _given: Arc<PendingResponse>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Sends a response body at the client's pace.
struct Sender {
    stream: SendStream<Bytes>,
    given: Arc<PendingResponse>,
    pace: SendPace,
    /// Timer that runs while the window is closed.
    patience: Option<Pin<Box<Sleep>>>,
    /// Deadline by which the service must end an evicted stream; `None` before the eviction.
    last_words: Option<Pin<Box<Sleep>>>,
}

/// How long a service may take to end an evicted stream.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Sender {
    async fn send<B>(&mut self, mut body: Pin<&mut B>) -> Result<(), End>
    where
        B: Body,
        B::Data: Buf,
    {
        loop {
            let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
                Poll::Ready(frame) => Poll::Ready(Ok(frame)),
                Poll::Pending => self.poll_gone_or_evicted(cx).map(Err),
            });
            let frame = match frame.await? {
                None => return self.send_data(Bytes::new(), true),
                Some(Err(_)) => return Err(End::Broken),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(mut data) => {
                    let is_last = body.is_end_stream();
                    self.send_all(data.copy_to_bytes(data.remaining()), is_last)
                        .await?;
                    if is_last {
                        return Ok(());
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        return self.send_trailers(trailers);
                    }
                }
            }
        }
    }

    /// Sends a frame of the body in pieces as the window allows.
    async fn send_all(&mut self, mut data: Bytes, is_last: bool) -> Result<(), End> {
        if data.is_empty() && is_last {
            return self.send_data(data, true);
        }
        while !data.is_empty() {
            self.stream.reserve_capacity(data.len().min(PIECE));
            let (room, waited) = match self.stream.capacity() {
                0 => self.wait_for_room().await?,
                room => (room, Duration::ZERO),
            };
            let piece = data.split_to(room.min(data.len()));
            self.pace.taken(piece.len(), waited, self.given.report.limits());
            self.send_data(piece, is_last && data.is_empty())?;
        }
        Ok(())
    }

    /// Waits for flow-control window. Returns the size of the window and how long the wait took.
    async fn wait_for_room(&mut self) -> Result<(usize, Duration), End> {
        let since = Instant::now();
        let deadline = since + self.pace.patience(self.given.report.limits());
        match &mut self.patience {
            Some(sleep) => sleep.as_mut().reset(deadline),
            none => *none = Some(Box::pin(sleep_until(deadline))),
        }
        self.given.report.waits_for_room();
        let room = poll_fn(|cx| self.poll_room(cx)).await;
        self.given.report.waits_no_more(room.is_ok());
        if matches!(room, Err(End::Stuck)) {
            self.given.report.is_stuck(since);
        }
        Ok((room?, since.elapsed()))
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, End>> {
        loop {
            match self.stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(0))) => {}
                Poll::Ready(Some(Ok(room))) => return Poll::Ready(Ok(room)),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(Err(End::Gone)),
                Poll::Pending => break,
            }
        }
        if let Poll::Ready(gone) = self.poll_gone(cx) {
            return Poll::Ready(Err(gone));
        }
        if self
            .given
            .report
            .seat()
            .poll_revoked(Waiter::Connection, cx)
            .is_ready()
        {
            return Poll::Ready(Err(End::Evicted));
        }
        match &mut self.patience {
            Some(sleep) => sleep.as_mut().poll(cx).map(|()| Err(End::Stuck)),
            None => Poll::Pending,
        }
    }

    /// Polls for a disconnect or eviction while the service has nothing to send.
    fn poll_gone_or_evicted(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Poll::Ready(gone) = self.poll_gone(cx) {
            return Poll::Ready(gone);
        }
        ready!(self.given.report.seat().poll_revoked(Waiter::Connection, cx));
        let end = || Box::pin(sleep_until(Instant::now() + LAST_WORDS));
        let last_words = self.last_words.get_or_insert_with(end);
        last_words.as_mut().poll(cx).map(|()| End::Evicted)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.stream.poll_reset(cx).map(|_| End::Gone)
    }

    /// Waits until h2 has written all pieces. Fails if h2 makes no progress for too long.
    async fn until_sent(self) -> (SendStream<Bytes>, Result<(), End>) {
        let Self {
            mut stream,
            given,
            pace,
            patience,
            ..
        } = self;
        let limits = given.report.limits();
        let wait = pace.patience(limits);
        let mut since = Instant::now();
        let mut left = Arc::strong_count(&given) - 1;
        if left == 0 {
            return (stream, Ok(()));
        }
        let mut patience = patience.unwrap_or_else(|| Box::pin(sleep_until(since + wait)));
        patience.as_mut().reset(since + wait);
        given.is_waited_for.store(true, Ordering::Relaxed);
        given.report.waits_for_room();
        let (sent, of_pieces) = (given.sent.clone(), Arc::downgrade(&given));
        drop(given);
        let mut is_revoked = false;
        let end = poll_fn(|cx| {
            sent.register(cx.waker());
            let Some(given) = of_pieces.upgrade() else {
                return Poll::Ready(Ok(()));
            };
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(End::Gone));
            }
            // After a revocation, the final bytes of the service may still be unsent, so some time is allowed
            // for sending them.
            let seat = given.report.seat();
            if !is_revoked && seat.poll_revoked(Waiter::Connection, cx).is_ready() {
                is_revoked = true;
                patience.as_mut().reset(Instant::now() + LAST_WORDS);
            }
            while patience.as_mut().poll(cx).is_ready() {
                if is_revoked {
                    return Poll::Ready(Err(End::Evicted));
                }
                // One reference is held here; all other references belong to unwritten pieces.
                let now_left = Arc::strong_count(&given) - 1;
                if now_left >= left {
                    given.report.is_stuck(since);
                    return Poll::Ready(Err(End::Stuck));
                }
                (left, since) = (now_left, Instant::now());
                patience.as_mut().reset(since + wait);
            }
            Poll::Pending
        });
        let end = end.await;
        (stream, end)
    }

    fn send_data(&mut self, data: Bytes, is_last: bool) -> Result<(), End> {
        let data = match data.is_empty() {
            true => data,
            false => Bytes::from_owner(Piece {
                bytes: data,
                _given: self.given.clone(),
            }),
        };
        self.stream.send_data(data, is_last).map_err(|_| End::Gone)
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> Result<(), End> {
        self.stream.send_trailers(trailers).map_err(|_| End::Gone)
    }
}
