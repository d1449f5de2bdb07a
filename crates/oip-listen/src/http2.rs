//! One HTTP/2 connection: dispatches its streams, and pings a silent client.
//!
//! hyper's server hides the data that it buffers for a stream. With hyper, a stream whose client does not
//! read could not be reset on its own; the whole connection would have to end. This server is therefore built
//! directly on h2, as hyper's server is.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{
    Ping, PingPong, RecvStream,
    server::{Builder, Handshake, SendResponse},
};
use http::Request;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{ConnectionLimits, activity::Activity, shares::Window, tls::Transport};

/// An HTTP/2 connection. The future completes when the connection ends.
pub(crate) struct Http2<A> {
    state: State,
    activity: Activity,
    /// Function that is called with each request and the sender of its response.
    accept: A,
    is_closing: bool,
}

enum State {
    Handshake(Handshake<Transport, Bytes>, Option<Silence>),
    Open(h2::server::Connection<Transport, Bytes>, Silence),
}

impl<A> Http2<A>
where
    A: FnMut(Request<RecvStream>, SendResponse<Bytes>),
{
    pub(crate) fn new(transport: Transport, window: &Window, activity: &Activity, accept: A) -> Self {
        let limits = activity.limits();
        let handshake = Builder::new()
            .max_concurrent_streams(limits.max_streams)
            .max_header_list_size(limits.max_header_list_bytes)
            .initial_window_size(window.of_stream())
            .initial_connection_window_size(window.of_connection())
            .max_frame_size(window.frame())
            .max_send_buffer_size(SEND_BUFFER)
            .handshake(transport);
        Self {
            state: State::Handshake(handshake, Some(Silence::new(limits))),
            activity: activity.clone(),
            accept,
            is_closing: false,
        }
    }

    /// Shuts down with two GOAWAY frames (RFC 9113, 6.8): requests that the client sent before it saw the
    /// first frame are still served.
    pub(crate) fn close(self: Pin<&mut Self>) {
        let this = self.get_mut();
        this.is_closing = true;
        if let State::Open(connection, _) = &mut this.state {
            connection.graceful_shutdown();
        }
    }

    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                State::Handshake(handshake, silence) => {
                    let mut connection = ready!(Pin::new(handshake).poll(cx)).map_err(io::Error::other)?;
                    if self.is_closing {
                        connection.graceful_shutdown();
                    }
                    let Some(mut silence) = silence.take() else {
                        return Poll::Ready(Ok(()));
                    };
                    silence.pings = connection.ping_pong();
                    self.state = State::Open(connection, silence);
                }
                State::Open(connection, silence) => {
                    if silence.poll(cx, &self.activity).is_ready() {
                        connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                    }
                    match ready!(connection.poll_accept(cx)) {
                        Some(Ok((request, respond))) => (self.accept)(request, respond),
                        Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                        None => return Poll::Ready(Ok(())),
                    }
                }
            }
        }
    }
}

impl<A> Future for Http2<A>
where
    A: FnMut(Request<RecvStream>, SendResponse<Bytes>),
{
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_serve(cx)
    }
}

/// No field is structurally pinned.
impl<A> Unpin for Http2<A> {}

/// Size of the send buffer of a stream, in bytes. All buffered bytes are within the window that the client
/// granted.
const SEND_BUFFER: usize = 400 << 10;

/// Detects a silent client by sending pings to it.
struct Silence {
    pings: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    /// Number of bytes that had been read when the timer was set.
    bytes_read: u64,
    /// Whether a ping was sent since the timer was set.
    is_pinged: bool,
}

impl Silence {
    fn new(limits: &ConnectionLimits) -> Self {
        Self {
            pings: None,
            timer: Box::pin(sleep_until(Instant::now() + limits.ping_interval)),
            bytes_read: 0,
            is_pinged: false,
        }
    }

    /// Completes when the client has sent no data for an interval after a ping. Any data counts as a reply.
    fn poll(&mut self, cx: &mut Context<'_>, activity: &Activity) -> Poll<()> {
        let Some(pings) = &mut self.pings else {
            return Poll::Pending;
        };
        // Consumes the pong, so that the next ping can be sent.
        let _ = pings.poll_pong(cx);
        while self.timer.as_mut().poll(cx).is_ready() {
            let bytes_read = activity.bytes_read();
            let was_silent = bytes_read == self.bytes_read;
            if was_silent && self.is_pinged {
                self.pings = None;
                return Poll::Ready(());
            }
            self.bytes_read = bytes_read;
            // h2 rejects a second ping while the first is outstanding; the pong of the first ping then
            // counts.
            self.is_pinged = was_silent && pings.send_ping(Ping::opaque()).is_ok();
            let next = Instant::now() + activity.limits().ping_interval;
            self.timer.as_mut().reset(next);
        }
        Poll::Pending
    }
}
