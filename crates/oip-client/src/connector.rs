//! Plain and TLS connections for the pools of both transports.

use std::{
    error::Error,
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower_service::Service;

use crate::BoxFuture;

/// Opens connections.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    tls: Option<Arc<ClientConfig>>,
    /// Timeout for connecting to a Unix socket and for the TLS handshake.
    timeout: Duration,
    /// The Unix socket to connect to instead of a host.
    #[cfg_attr(not(unix), expect(dead_code, reason = "URLs with sockets are refused there"))]
    socket: Option<PathBuf>,
}

impl Connector {
    /// Creates a connector; with `tls` its connections are encrypted.
    pub(crate) fn new(
        mut tcp: HttpConnector,
        tls: Option<ClientConfig>,
        timeout: Duration,
        socket: Option<PathBuf>,
    ) -> Self {
        tcp.enforce_http(false);
        Self {
            tcp,
            tls: tls.map(Arc::new),
            timeout,
            socket,
        }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Stream, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let timeout = self.timeout;
        #[cfg(unix)]
        if let Some(socket) = self.socket.clone() {
            return Box::pin(async move {
                let stream = within(timeout, tokio::net::UnixStream::connect(socket)).await?;
                Ok(Stream::Unix(TokioIo::new(stream)))
            });
        }
        let tls = self.tls.clone();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let connecting = self.tcp.call(uri);
        Box::pin(async move {
            let stream = connecting.await?;
            let Some(tls) = tls else {
                return Ok(Stream::Plain(stream));
            };
            let name = ServerName::try_from(host)?;
            let handshake = TlsConnector::from(tls).connect(name, stream.into_inner());
            let stream = within(timeout, handshake).await?;
            Ok(Stream::Tls(Box::new(TokioIo::new(stream))))
        })
    }
}

async fn within<T>(timeout: Duration, connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time");
    tokio::time::timeout(timeout, connecting).await.map_err(late)?
}

/// A plain, TLS or Unix connection.
pub(crate) enum Stream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
    #[cfg(unix)]
    Unix(TokioIo<tokio::net::UnixStream>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain(stream) => stream.connected(),
            #[cfg(unix)]
            Self::Unix(stream) => stream.connected(),
            Self::Tls(stream) => {
                let (tcp, session) = stream.inner().get_ref();
                let connected = tcp.connected();
                match session.alpn_protocol() {
                    Some(b"h2") => connected.negotiated_h2(),
                    _ => connected,
                }
            }
        }
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            #[cfg(unix)]
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }
}
