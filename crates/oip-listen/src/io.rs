//! A connection's stream, watched for the client's leaving and for writes that make no progress.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

use crate::activity::Activity;

pin_project! {
    /// A connection that reports what it reads, and fails when the other side takes nothing for too long.
    pub(crate) struct WatchedStream {
        #[pin]
        stream: TcpStream,
        activity: Activity,
        write_timeout: Duration,
        // Runs while a write cannot go on.
        #[pin]
        stall: Sleep,
        is_stalled: bool,
        // Runs once the client has said that it sends no more.
        #[pin]
        end_grace: Sleep,
        has_ended: bool,
    }
}

/// A client that closes its side has gone, or has just said all it wants to say: nobody can tell. For so long a request
/// in work is given the benefit of the doubt; then it is given up.
const END_GRACE: Duration = Duration::from_millis(50);

impl WatchedStream {
    pub(crate) fn new(stream: TcpStream, activity: Activity, write_timeout: Duration) -> Self {
        let now = Instant::now();
        let (stall, end_grace) = (sleep_until(now), sleep_until(now));
        Self {
            stream,
            activity,
            write_timeout,
            stall,
            is_stalled: false,
            end_grace,
            has_ended: false,
        }
    }

    /// Hands a write's result on, unless writes have been stuck for too long.
    fn watch<T>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let mut this = self.project();
        let result = write(this.stream, cx);
        if result.is_ready() {
            *this.is_stalled = false;
            return result;
        }
        if !*this.is_stalled {
            *this.is_stalled = true;
            this.stall.as_mut().reset(Instant::now() + *this.write_timeout);
        }
        ready!(this.stall.poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read",
        )))
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        if !*this.has_ended {
            let before = buf.filled().len();
            ready!(this.stream.poll_read(cx, buf))?;
            let read = buf.filled().len() - before;
            if read > 0 || buf.remaining() == 0 {
                this.activity.read(read);
                return Poll::Ready(Ok(()));
            }
            *this.has_ended = true;
            let grace = if this.activity.has_open_requests() {
                END_GRACE
            } else {
                Duration::ZERO
            };
            this.end_grace.as_mut().reset(Instant::now() + grace);
        }
        ready!(this.end_grace.poll(cx));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.watch(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.watch(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch(cx, AsyncWrite::poll_shutdown)
    }
}
