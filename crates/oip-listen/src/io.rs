//! The raw stream of a connection, which detects disconnects, stalled writes and floods.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::Handle,
    time::{Instant, Sleep, sleep_until},
};

use crate::{
    Protocol,
    activity::Activity,
    frames::{Frames, GO_AWAY},
    lanes::Lane,
    protocol::HTTP2_PREFACE,
    send_pace::SendPace,
    stream::Stream,
    tasks::Socket,
};

pin_project! {
    /// A connection that reports the data that it reads, and fails when the peer reads too slowly.
    pub(crate) struct WatchedStream {
        socket: Socket,
        activity: Activity,
        start: Start,
        // The scanner of HTTP/2 frames; `None` for HTTP/1.
        frames: Option<Frames>,
        // Whether the bytes are plaintext rather than TLS records.
        is_plain: bool,
        // Bytes read since the last yield.
        work: usize,
        // Time at which the connection last had more to read than one turn allows, if that was recent.
        busy_since: Option<Instant>,
        // Whether the last write was complete, so that a frame may be written after it.
        is_write_whole: bool,
        pace: SendPace,
        // Timer that runs while a write is blocked.
        #[pin]
        stall: Sleep,
        stalled_since: Option<Instant>,
        // Limits how long received data is discarded, after a response that was sent before its request was
        // read completely.
        #[pin]
        linger: Sleep,
        lingering: LingerState,
        // Timer that runs after the client has closed its sending side.
        #[pin]
        end_grace: Sleep,
        has_ended: bool,
    }
}

/// Number of bytes that a busy connection reads before it yields. A client that always has data would
/// otherwise keep its thread until the runtime's budget is used up, which takes many megabytes.
const TURN: usize = 64 << 10;

/// Number of bytes that any other connection reads before it yields and counts as busy.
const QUIET_TURN: usize = 32 << 10;

/// How long a connection counts as busy after it last used up its turn.
const BUSY: Duration = Duration::from_secs(1);

/// Cost of a frame in bytes, which counts toward the bytes of a turn.
const FRAME: usize = 256;

/// How long a request in progress continues after its client has closed the sending side; then the request is
/// cancelled. The server cannot tell whether such a client has left or has merely finished sending.
pub(crate) const END_GRACE: Duration = Duration::from_millis(50);

/// How long the unread part of a request is read and discarded after an early response.
const LINGER: Duration = Duration::from_secs(1);

/// Maximum number of bytes that are read and discarded after an early response.
const MAX_LINGER_BYTES: usize = 16 << 20;

/// The first bytes of a connection, if they were read to detect the protocol.
#[derive(Default)]
struct Start {
    bytes: [u8; HTTP2_PREFACE.len()],
    read: usize,
    /// Number of bytes already replayed.
    given: usize,
}

impl Start {
    /// Copies the next bytes into `buf`, as many as fit, and returns them.
    fn replay(&mut self, buf: &mut ReadBuf<'_>) -> &[u8] {
        let given = buf.remaining().min(self.read - self.given);
        let bytes = &self.bytes[self.given..self.given + given];
        buf.put_slice(bytes);
        self.given += given;
        bytes
    }
}

/// Whether incoming data is being discarded, and how much was discarded so far.
enum LingerState {
    No,
    Read(usize),
}

impl WatchedStream {
    pub(crate) fn new(stream: Stream, protocol: Protocol, activity: Activity) -> Self {
        let frames = (protocol == Protocol::Http2).then(|| Frames::new(Instant::now()));
        Self::with(Socket::new(stream), frames, true, activity)
    }

    /// Creates the stream beneath the TLS layer. `home` is the runtime that accepted the connection. The
    /// decrypting layer above reports the plaintext.
    pub(crate) fn below_tls(stream: Stream, home: Handle, activity: Activity) -> Self {
        Self::with(Socket::with_home(stream, home), None, false, activity)
    }

    fn with(socket: Socket, frames: Option<Frames>, is_plain: bool, activity: Activity) -> Self {
        let now = Instant::now();
        let (stall, linger, end_grace) = (sleep_until(now), sleep_until(now), sleep_until(now));
        Self {
            socket,
            activity,
            start: Start::default(),
            frames,
            is_plain,
            work: 0,
            busy_since: None,
            is_write_whole: true,
            pace: SendPace::default(),
            stall,
            stalled_since: None,
            linger,
            lingering: LingerState::No,
            end_grace,
            has_ended: false,
        }
    }

    /// Peeks at available data.
    pub(crate) fn poll_peek(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        start: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        this.socket
            .get(this.activity)?
            .poll_peek(cx, &mut ReadBuf::new(start))
    }

    /// Counts `count` HTTP/2 frames in the last read.
    pub(crate) fn count_frames(self: Pin<&mut Self>, count: usize) {
        *self.project().work += count * FRAME;
    }

    /// Reads until the protocol is known, and keeps the bytes for the next reader. Returns `None` if the
    /// client disconnects first.
    pub(crate) fn poll_detect(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Protocol>>> {
        let this = self.project();
        let start = this.start;
        loop {
            let mut buf = ReadBuf::new(&mut start.bytes[start.read..]);
            ready!(Pin::new(this.socket.get(this.activity)?).poll_read(cx, &mut buf))?;
            let read = buf.filled().len();
            if read == 0 {
                return Poll::Ready(Ok(None));
            }
            this.activity.read(read);
            start.read += read;
            let protocol = match HTTP2_PREFACE.strip_prefix(&start.bytes[..start.read]) {
                None => Protocol::Http1,
                Some([]) => Protocol::Http2,
                // A client that sent this part of the preface will send the remaining part, or something
                // invalid.
                Some(_) => continue,
            };
            *this.frames = (protocol == Protocol::Http2).then(|| Frames::new(Instant::now()));
            this.activity.set_protocol(protocol);
            return Poll::Ready(Ok(Some(protocol)));
        }
    }

    /// Performs a write and returns its result, or an error if the client reads too slowly.
    fn watch(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        len: usize,
        write: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut this = self.project();
        let limits = this.activity.limits();
        let result = write(Pin::new(this.socket.get(this.activity)?), cx);
        let written = match &result {
            Poll::Ready(Ok(written)) => *written,
            _ => 0,
        };
        *this.is_write_whole = written == len;
        if let Some(frames) = this.frames {
            frames.written(written);
        }
        if let Poll::Ready(written) = result {
            if let Some(since) = this.stalled_since.take() {
                this.activity.set_write_stalled(false);
                if let Ok(written) = &written {
                    this.pace.taken(*written, since.elapsed(), limits);
                }
            }
            return Poll::Ready(written);
        }
        if this.stalled_since.is_none() {
            let now = Instant::now();
            *this.stalled_since = Some(now);
            this.activity.set_write_stalled(true);
            this.stall.as_mut().reset(now + this.pace.patience(limits));
        }
        ready!(this.stall.poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read",
        )))
    }

    /// Reads into `buf`, unless the connection has used up its turn. Returns false at the end of the client's
    /// data.
    fn poll_data(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        let this = self.project();
        let turn = match this.busy_since {
            Some(_) => TURN,
            None => QUIET_TURN,
        };
        if *this.work >= turn {
            *this.work = 0;
            *this.busy_since = Some(Instant::now());
            this.activity.go_to(Lane::Busy);
            this.activity.end_turn();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.busy_since.is_some_and(|since| since.elapsed() > BUSY) {
            *this.busy_since = None;
            this.activity.go_to(Lane::Work);
        }
        let before = buf.filled().len();
        let stream = this.socket.get(this.activity)?;
        let Poll::Ready(result) = Pin::new(&mut *stream).poll_read(cx, buf) else {
            *this.work = 0;
            return Poll::Pending;
        };
        result?;
        let read = buf.filled().len() - before;
        if read == 0 && buf.remaining() > 0 {
            return Poll::Ready(Ok(false));
        }
        if *this.is_plain {
            this.activity.read(read);
        }
        *this.work += read;
        if let Some(frames) = this.frames {
            let Ok(count) = frames.read(&buf.filled()[before..], Instant::now) else {
                if *this.is_write_whole {
                    let _ = stream.try_write(&GO_AWAY);
                }
                return Poll::Ready(Err(io::Error::other("the client sends empty frames")));
            };
            *this.work += count * FRAME;
        }
        Poll::Ready(Ok(true))
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.as_mut().project();
        if this.start.given < this.start.read {
            let bytes = this.start.replay(buf);
            if let Some(frames) = this.frames {
                // The preface contains no frames, so this cannot fail.
                let _ = frames.read(bytes, Instant::now);
            }
            return Poll::Ready(Ok(()));
        }
        if !*this.has_ended {
            if ready!(self.as_mut().poll_data(cx, buf))? {
                return Poll::Ready(Ok(()));
            }
            let mut this = self.as_mut().project();
            *this.has_ended = true;
            let grace = if this.activity.open_requests() > 0 {
                END_GRACE
            } else {
                Duration::ZERO
            };
            this.end_grace.as_mut().reset(Instant::now() + grace);
        }
        ready!(self.project().end_grace.poll(cx));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.watch(cx, buf.len(), |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.watch(cx, len, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        // Both kinds of sockets support vectored writes.
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        Pin::new(this.socket.get(this.activity)?).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        let mut stream = Pin::new(this.socket.get(this.activity)?);
        ready!(stream.as_mut().poll_shutdown(cx))?;
        if !this.activity.has_unread_request() || *this.has_ended {
            return Poll::Ready(Ok(()));
        }
        // Closing now would make the kernel send a reset, and the client might drop the response that it has
        // not read yet.
        if matches!(this.lingering, LingerState::No) {
            *this.lingering = LingerState::Read(0);
            this.linger.as_mut().reset(Instant::now() + LINGER);
        }
        let mut scratch = [0; 16 << 10];
        while let LingerState::Read(read) = this.lingering {
            let mut buf = ReadBuf::new(&mut scratch);
            match stream.as_mut().poll_read(cx, &mut buf) {
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

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io::Write};

    use tokio::net::TcpListener;

    use super::*;
    use crate::ConnectionLimits;

    /// A connection that always has data to read yields to other tasks.
    #[tokio::test]
    async fn reading_pauses_for_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let activity = Activity::new(Protocol::Http2, &ConnectionLimits::default());
        let mut stream = Box::pin(WatchedStream::new(Stream::Tcp(stream), Protocol::Http2, activity));
        // After the preface the client sends only empty frames, so the turn ends because of the number of
        // frames and not because of the number of bytes.
        let frames = [&[0; 24][..], &[0, 0, 0, HEADERS, 4, 0, 0, 0, 1].repeat(600)].concat();
        client.write_all(&frames).unwrap();
        let (mut read, mut pauses) = (0, 0);
        while read < frames.len() {
            let mut room = [0; 1000];
            let mut buf = ReadBuf::new(&mut room);
            let polled = poll_fn(|cx| Poll::Ready(stream.as_mut().poll_read(cx, &mut buf))).await;
            match polled {
                Poll::Ready(result) => result.unwrap(),
                Poll::Pending => {
                    pauses += usize::from(read > 2000);
                    tokio::task::yield_now().await;
                }
            }
            read += buf.filled().len();
        }
        assert!(pauses > 0, "all was read in one turn");
    }

    const HEADERS: u8 = 1;
}
