//! The byte stream under HTTP: plain or encrypted.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tokio_rustls::server::TlsStream;

use crate::{
    activity::Activity,
    frames::{Frames, GO_AWAY},
    io::{END_GRACE, WatchedStream},
    protocol::Protocol,
};

/// A plain or encrypted connection.
pub(crate) enum Transport {
    Plain(Pin<Box<WatchedStream>>),
    Tls(Box<EncryptedStream>),
}

/// A TLS connection. The stream under TLS handles yielding and the client's pace; this layer inspects the
/// decrypted data.
pub(crate) struct EncryptedStream {
    stream: TlsStream<Pin<Box<WatchedStream>>>,
    activity: Activity,
    /// The scanner of HTTP/2 frames; `None` for HTTP/1.
    frames: Option<Frames>,
    /// Whether the last write was complete, so that a frame may be written after it.
    is_write_whole: bool,
    /// Timer that runs after the client has closed its sending side.
    ended: Option<Pin<Box<Sleep>>>,
}

impl Transport {
    pub(crate) fn tls(
        stream: TlsStream<Pin<Box<WatchedStream>>>,
        protocol: Protocol,
        activity: Activity,
    ) -> Self {
        Self::Tls(Box::new(EncryptedStream {
            stream,
            activity,
            frames: (protocol == Protocol::Http2).then(|| Frames::new(Instant::now())),
            is_write_whole: true,
            ended: None,
        }))
    }
}

impl EncryptedStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ended.is_none() {
            let before = buf.filled().len();
            let is_cut_off = match ready!(Pin::new(&mut self.stream).poll_read(cx, buf)) {
                Ok(()) => false,
                // Many clients omit TLS close_notify. HTTP marks the ends of messages itself, so truncation
                // is detected anyway.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => true,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let read = &buf.filled()[before..];
            if !read.is_empty() || buf.remaining() == 0 {
                self.activity.read(read.len());
                if let Some(frames) = &mut self.frames {
                    match frames.read(read, Instant::now) {
                        Ok(count) => self.stream.get_mut().0.as_mut().count_frames(count),
                        Err(_) => {
                            if self.is_write_whole {
                                let _ = Pin::new(&mut self.stream).poll_write(cx, &GO_AWAY);
                            }
                            return Poll::Ready(Err(io::Error::other("the client sends empty frames")));
                        }
                    }
                }
                return Poll::Ready(Ok(()));
            }
            // If the TCP connection has also ended, the stream under TLS has already waited for the grace
            // period.
            let grace = if !is_cut_off && self.activity.open_requests() > 0 {
                END_GRACE
            } else {
                Duration::ZERO
            };
            self.ended = Some(Box::pin(sleep(grace)));
        }
        if let Some(ended) = &mut self.ended {
            ready!(ended.as_mut().poll(cx));
        }
        Poll::Ready(Ok(()))
    }

    /// Records the result of a write and returns it.
    fn note_write(&mut self, len: usize, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let written = match &result {
            Poll::Ready(Ok(written)) => *written,
            _ => 0,
        };
        self.is_write_whole = written == len;
        if let Some(frames) = &mut self.frames {
            frames.written(written);
        }
        result
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => stream.as_mut().poll_read(cx, buf),
            Self::Tls(encrypted) => encrypted.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => stream.as_mut().poll_write(cx, buf),
            Self::Tls(encrypted) => {
                let result = Pin::new(&mut encrypted.stream).poll_write(cx, buf);
                encrypted.note_write(buf.len(), result)
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => stream.as_mut().poll_write_vectored(cx, bufs),
            Self::Tls(encrypted) => {
                let len = bufs.iter().map(|buf| buf.len()).sum();
                let result = Pin::new(&mut encrypted.stream).poll_write_vectored(cx, bufs);
                encrypted.note_write(len, result)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        // Both variants support vectored writes.
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => stream.as_mut().poll_flush(cx),
            Self::Tls(encrypted) => Pin::new(&mut encrypted.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => stream.as_mut().poll_shutdown(cx),
            Self::Tls(encrypted) => Pin::new(&mut encrypted.stream).poll_shutdown(cx),
        }
    }
}
