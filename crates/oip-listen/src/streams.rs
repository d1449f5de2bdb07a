//! One stream of HTTP/2, from its request's head to the last byte of its response.
//!
//! A response is given to h2 as far as the client has made room for it and no further, so that a stream whose client does not read
//! can be reset whenever patience with it ends, and what it holds is freed.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream, server::SendResponse};
use http::{
    Response, Version,
    header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, TRANSFER_ENCODING, UPGRADE},
};
use http_body::Body;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{body::Report, date, places::Waiter, send_pace::SendPace};

/// Why a stream ended before all of its response was given out.
enum End {
    /// The client has reset it, or left.
    Gone,
    /// The service broke off its response.
    Broken,
    /// The client did not read.
    Stuck,
    /// It waited for its client, and another one needed its place.
    Evicted,
}

/// Sends the response that a service gives, for as long as the client wants it and reads it.
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
        // Looked at only while the service works: a response that is there is sent.
        respond.poll_reset(cx).map(|_| Err(End::Gone))
    });
    let response = match response.await {
        Ok(response) => response,
        Err(end) => {
            if matches!(end, End::Evicted) {
                // Its request is not even complete: nothing was done.
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
        report,
        pace: SendPace::default(),
        patience: None,
        last_words: None,
    };
    match sender.send(pin!(body)).await {
        Ok(()) | Err(End::Gone) => {}
        Err(End::Broken) => sender.stream.send_reset(Reason::INTERNAL_ERROR),
        Err(End::Stuck | End::Evicted) => sender.stream.send_reset(Reason::CANCEL),
    }
}

/// Makes a response's head one of HTTP/2.
fn complete(response: &mut Response<()>, len: Option<u64>) {
    *response.version_mut() = Version::HTTP_2;
    let headers = response.headers_mut();
    // Headers that are of HTTP/1's connection alone, and malformed here (RFC 9113, 8.2.2).
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

/// Bytes of a response that room is asked for at a time.
const PIECE: usize = 64 << 10;

/// Sends a response's body at the client's pace.
struct Sender {
    stream: SendStream<Bytes>,
    report: Report,
    pace: SendPace,
    /// Runs while the client makes no room.
    patience: Option<Pin<Box<Sleep>>>,
    /// Runs once its place is lost, for the service to end it.
    last_words: Option<Pin<Box<Sleep>>>,
}

/// How long a service may take to end a stream whose place is needed.
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

    /// Sends a frame of the body in pieces for which there is room.
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
            self.pace.taken(piece.len(), waited, self.report.limits());
            self.send_data(piece, is_last && data.is_empty())?;
        }
        Ok(())
    }

    /// Waits until the client makes room; returns how much, and how long it took.
    async fn wait_for_room(&mut self) -> Result<(usize, Duration), End> {
        let since = Instant::now();
        let deadline = since + self.pace.patience(self.report.limits());
        match &mut self.patience {
            Some(sleep) => sleep.as_mut().reset(deadline),
            none => *none = Some(Box::pin(sleep_until(deadline))),
        }
        self.report.waits_for_room();
        let room = poll_fn(|cx| self.poll_room(cx)).await;
        self.report.waits_no_more(room.is_ok());
        if matches!(room, Err(End::Stuck)) {
            self.report.is_stuck(since);
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
        if self.report.seat().poll_revoked(Waiter::Connection, cx).is_ready() {
            return Poll::Ready(Err(End::Evicted));
        }
        match &mut self.patience {
            Some(sleep) => sleep.as_mut().poll(cx).map(|()| Err(End::Stuck)),
            None => Poll::Pending,
        }
    }

    /// While the service has nothing to send.
    fn poll_gone_or_evicted(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Poll::Ready(gone) = self.poll_gone(cx) {
            return Poll::Ready(gone);
        }
        ready!(self.report.seat().poll_revoked(Waiter::Connection, cx));
        let end = || Box::pin(sleep_until(Instant::now() + LAST_WORDS));
        let last_words = self.last_words.get_or_insert_with(end);
        last_words.as_mut().poll(cx).map(|()| End::Evicted)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.stream.poll_reset(cx).map(|_| End::Gone)
    }

    fn send_data(&mut self, data: Bytes, is_last: bool) -> Result<(), End> {
        self.stream.send_data(data, is_last).map_err(|_| End::Gone)
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> Result<(), End> {
        self.stream.send_trailers(trailers).map_err(|_| End::Gone)
    }
}
