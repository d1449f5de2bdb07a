//! The stream of a connection: a TCP or a Unix socket behind one type.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

#[cfg(unix)]
use crate::descriptors::Reception;

/// The stream of a connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream, Option<Reception>),
}

/// Evaluates `$do` with the TCP or Unix stream as `$stream`.
macro_rules! with {
    ($this:expr, $stream:ident => $do:expr) => {
        match $this {
            Stream::Tcp($stream) => $do,
            #[cfg(unix)]
            Stream::Unix($stream, _) => $do,
        }
    };
}

impl Stream {
    /// Returns whether this is a TCP connection, which can come over a network.
    pub(crate) fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Peeks at available data. Not supported for Unix sockets.
    pub(crate) fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => stream.poll_peek(cx, buf),
            #[cfg(unix)]
            Self::Unix(..) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Disables Nagle's algorithm, which Unix sockets do not have.
    pub(crate) fn set_nodelay(&self) {
        if let Self::Tcp(stream) = self {
            let _ = stream.set_nodelay(true);
        }
    }

    /// Receives descriptors until the first request arrives. Returns `None` for TCP.
    #[cfg(unix)]
    pub(crate) fn receive_descriptors(&mut self) -> Option<Reception> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(_, reception) => Some(reception.get_or_insert_default().clone()),
        }
    }

    /// Writes as much as possible without waiting.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        with!(self, stream => stream.try_write(bytes))
    }

    /// Registers the stream with the current runtime.
    pub(crate) fn into_current_runtime(self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream.into_std()?).map(Self::Tcp),
            #[cfg(unix)]
            Self::Unix(stream, reception) => {
                UnixStream::from_std(stream.into_std()?).map(|stream| Self::Unix(stream, reception))
            }
        }
    }
}

#[cfg(unix)]
impl std::os::fd::AsFd for Stream {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        with!(self, stream => stream.as_fd())
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(unix)]
            Self::Unix(stream, reception) => {
                if let Some(open) = reception {
                    if open.is_open() {
                        return open.poll_read(stream, cx, buf);
                    }
                    *reception = None;
                }
                Pin::new(stream).poll_read(cx, buf)
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        with!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}
