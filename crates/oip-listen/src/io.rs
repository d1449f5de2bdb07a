//! A connection's stream, watched for the client's leaving, for writes that make no progress and for floods.

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
    /// A connection that reports what it reads, and fails when the other side takes too little for too long.
    pub(crate) struct WatchedStream {
        socket: Socket,
        activity: Activity,
        start: Start,
        // Over HTTP/2.
        frames: Option<Frames>,
        // Whether what is read is what the client says, and not an encryption of it.
        is_plain: bool,
        // Bytes that were read since other connections had their turn.
        work: usize,
        // When it last had more to read than a turn's worth, if that was not long ago.
        busy_since: Option<Instant>,
        // Whether the last write was whole, so that a frame may be written behind it.
        is_write_whole: bool,
        pace: SendPace,
        // Runs while a write cannot go on.
        #[pin]
        stall: Sleep,
        stalled_since: Option<Instant>,
        // Bytes that are read and dropped after a response that came before its request was read.
        #[pin]
        linger: Sleep,
        lingering: Lingering,
        // Runs once the client has said that it sends no more.
        #[pin]
        end_grace: Sleep,
        has_ended: bool,
    }
}

/// So much is read before others have their turn. A client that always has something to read would otherwise keep a thread
/// for as long as the runtime lets it, which is many megabytes.
const TURN: usize = 64 << 10;

/// So much is read before a connection counts as busy.
const QUIET_TURN: usize = 32 << 10;

/// For so long it is busy after that.
const BUSY: Duration = Duration::from_secs(1);

/// A frame costs as much as so many bytes.
const FRAME: usize = 256;

/// A client that closes its side has gone, or has just said all it wants to say: nobody can tell. For so long a request
/// in work is given the benefit of the doubt; then it is given up.
pub(crate) const END_GRACE: Duration = Duration::from_millis(50);

/// For so long the rest of a request that was answered early is read and thrown away.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are thrown away at most.
const MAX_LINGER_BYTES: usize = 16 << 20;

/// The first bytes of a connection, if they were read to tell what the client speaks.
#[derive(Default)]
struct Start {
    bytes: [u8; HTTP2_PREFACE.len()],
    read: usize,
    /// How many were given out again.
    given: usize,
}

/// Whether what still comes is thrown away, and how much was.
enum Lingering {
    No,
    Read(usize),
}

impl WatchedStream {
    pub(crate) fn new(stream: Stream, protocol: Protocol, activity: Activity) -> Self {
        let frames = (protocol == Protocol::Http2).then(|| Frames::new(Instant::now()));
        Self::with(Socket::new(stream), frames, true, activity)
    }

    /// What an encrypted connection goes through, accepted on this runtime. What it says is reported by the layer that decrypts it.
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
            lingering: Lingering::No,
            end_grace,
            has_ended: false,
        }
    }

    /// Looks at what has come, and leaves it there.
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

    /// So many frames of HTTP/2 were in what was read last.
    pub(crate) fn count_frames(self: Pin<&mut Self>, count: usize) {
        *self.project().work += count * FRAME;
    }

    /// Reads until the bytes tell what the client speaks, and keeps them for the next reader. `None` if the client ends before.
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
                // One that has sent so much of it will send the rest, or nothing that can be understood.
                Some(_) => continue,
            };
            *this.frames = (protocol == Protocol::Http2).then(|| Frames::new(Instant::now()));
            this.activity.set_protocol(protocol);
            return Poll::Ready(Ok(Some(protocol)));
        }
    }

    /// Hands a write's result on, unless the client takes too little for too long.
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
}

impl AsyncRead for WatchedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        if this.start.given < this.start.read {
            let start = this.start;
            let given = buf.remaining().min(start.read - start.given);
            let bytes = &start.bytes[start.given..start.given + given];
            buf.put_slice(bytes);
            start.given += given;
            if let Some(frames) = this.frames {
                // A preface has no frames.
                let _ = frames.read(bytes, Instant::now);
            }
            return Poll::Ready(Ok(()));
        }
        if !*this.has_ended {
            let turn = if this.busy_since.is_some() {
                TURN
            } else {
                QUIET_TURN
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
            if read > 0 || buf.remaining() == 0 {
                if *this.is_plain {
                    this.activity.read(read);
                }
                *this.work += read;
                if let Some(frames) = this.frames {
                    let Ok(count) = frames.read(&buf.filled()[before..], Instant::now) else {
                        if *this.is_write_whole {
                            let _ = stream.try_write(&GO_AWAY);
                        }
                        return Poll::Ready(Err(io::Error::other(
                            "the client sends frames that carry nothing",
                        )));
                    };
                    *this.work += count * FRAME;
                }
                return Poll::Ready(Ok(()));
            }
            *this.has_ended = true;
            let grace = if this.activity.open_requests() > 0 {
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
        // All streams' are.
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
        // Closed now, the system would tell the client that its bytes were refused, and the client might drop the answer
        // that it has not read yet.
        if matches!(this.lingering, Lingering::No) {
            *this.lingering = Lingering::Read(0);
            this.linger.as_mut().reset(Instant::now() + LINGER);
        }
        let mut scratch = [0; 16 << 10];
        while let Lingering::Read(read) = this.lingering {
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

    /// However much there is to read, others have their turn.
    #[tokio::test]
    async fn reading_pauses_for_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let activity = Activity::new(Protocol::Http2, &ConnectionLimits::default());
        let mut stream = Box::pin(WatchedStream::new(Stream::Tcp(stream), Protocol::Http2, activity));
        // Frames of no payload but for the preface, so many that their number ends the turn and not their bytes.
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
