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

use crate::{activity::Activity, send_pace::SendPace};

pin_project! {
    /// A connection that reports what it reads, and fails when the other side takes too little for too long.
    pub(crate) struct WatchedStream {
        #[pin]
        stream: TcpStream,
        activity: Activity,
        pace: SendPace,
        // Runs while a write cannot go on.
        #[pin]
        stall: Sleep,
        stalled_since: Option<Instant>,
        // What is read and thrown away after an answer that came before its request was read.
        #[pin]
        linger: Sleep,
        lingering: Lingering,
        // Runs once the client has said that it sends no more.
        #[pin]
        end_grace: Sleep,
        has_ended: bool,
    }
}

/// A client that closes its side has gone, or has just said all it wants to say: nobody can tell. For so long a request
/// in work is given the benefit of the doubt; then it is given up.
const END_GRACE: Duration = Duration::from_millis(50);

/// For so long the rest of a request that was answered early is read and thrown away.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are thrown away at most.
const MAX_LINGER_BYTES: usize = 16 << 20;

/// Whether what still comes is thrown away, and how much was.
enum Lingering {
    No,
    Read(usize),
}

impl WatchedStream {
    pub(crate) fn new(stream: TcpStream, activity: Activity) -> Self {
        let now = Instant::now();
        let (stall, linger, end_grace) = (sleep_until(now), sleep_until(now), sleep_until(now));
        Self {
            stream,
            activity,
            pace: SendPace::default(),
            stall,
            stalled_since: None,
            linger,
            lingering: Lingering::No,
            end_grace,
            has_ended: false,
        }
    }

    /// Hands a write's result on, unless the client takes too little for too long.
    fn watch(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut this = self.project();
        let limits = this.activity.limits();
        let result = write(this.stream, cx);
        if let Poll::Ready(written) = result {
            if let (Some(since), Ok(written)) = (this.stalled_since.take(), &written) {
                this.pace.taken(*written, since.elapsed(), limits);
            }
            return Poll::Ready(written);
        }
        if this.stalled_since.is_none() {
            let now = Instant::now();
            *this.stalled_since = Some(now);
            this.stall.as_mut().reset(now + this.pace.patience(limits));
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
        self.project().stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        ready!(this.stream.as_mut().poll_shutdown(cx))?;
        if !this.activity.has_unread_request() || *this.has_ended {
            return Poll::Ready(Ok(()));
        }
        // Closed now, the system would tell the client that its bytes were refused, and the client might drop the answer
        // that it has not read yet.
        if matches!(this.lingering, Lingering::No) {
            *this.lingering = Lingering::Read(0);
            this.linger.as_mut().reset(Instant::now() + LINGER);
        }
        let mut scratch = [0; 16 << 10];
        while let Lingering::Read(read) = this.lingering {
            let mut buf = ReadBuf::new(&mut scratch);
            match this.stream.as_mut().poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() && *read < MAX_LINGER_BYTES => {
                    *read += buf.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        this.linger.poll(cx).map(Ok)
    }
}
