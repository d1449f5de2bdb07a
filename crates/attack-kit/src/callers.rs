//! Clients for cost measurements: one connection each, with sequential requests.

use std::{
    any::Any,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, Request};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    net::TcpStream,
    task::{spawn_local, yield_now},
};
use tokio_rustls::TlsConnector;

use crate::variants::TOKEN;

/// Adds the token to an HTTP request.
pub(crate) fn with_token(request: &[u8]) -> Result<Bytes> {
    let end = request.windows(2).position(|window| window == b"\r\n");
    let (line, rest) = request.split_at(end.context("a request without a line")?);
    let token = format!("\r\nAuthorization: Bearer {TOKEN}");
    Ok([line, token.as_bytes(), rest].concat().into())
}

/// The destination of requests and its transport.
pub(crate) struct Destination {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The ALPN protocol of TLS connections.
    pub(crate) protocol: &'static str,
}

/// A plain or TLS connection.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Destination {
    async fn connect(&self) -> Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let Some(config) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![self.protocol.into()];
        let name = ServerName::try_from("localhost")?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(Box::new(stream))
    }
}

/// The schedule of a client's requests.
pub(crate) struct Pace {
    pub(crate) next: Instant,
    /// Interval between requests; `None` sends each request after the response to the previous one (closed
    /// loop).
    pub(crate) interval: Option<Duration>,
    pub(crate) end: Instant,
}

impl Pace {
    /// Waits for the time of the next request. A request delayed by the previous response is late, and the
    /// delay counts as latency.
    async fn turn(&mut self) -> Option<Instant> {
        let Some(interval) = self.interval else {
            return Some(Instant::now()).filter(|now| *now < self.end);
        };
        let turn = self.next;
        self.next += interval;
        if turn >= self.end {
            return None;
        }
        // tokio's timers have millisecond resolution, which is too coarse, so the loop yields until the time
        // has come.
        while Instant::now() < turn {
            yield_now().await;
        }
        Some(turn)
    }
}

/// Opens a connection, sends one request, and keeps it idle until the result is dropped.
pub(crate) async fn idle(to: Destination, is_grpc: bool) -> Result<Box<dyn Any>> {
    let mut stream = to.connect().await?;
    if is_grpc {
        let (sender, connection) = h2::client::handshake(stream).await?;
        spawn_local(connection);
        return Ok(Box::new(sender.ready().await?));
    }
    stream
        .write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: bench\r\n\r\n")
        .await?;
    stream.flush().await?;
    receive(&mut stream, &mut [0; 4096]).await?;
    Ok(Box::new(stream))
}

/// Sends a request repeatedly over one connection; returns the latencies.
pub(crate) async fn call_http(to: Destination, request: Bytes, mut pace: Pace) -> Result<Vec<Duration>> {
    let (mut read, mut write) = split(to.connect().await?);
    let mut buffer = vec![0; 1 << 20];
    let mut times = Vec::new();
    loop {
        let Some(start) = pace.turn().await else {
            return Ok(times);
        };
        // An echo server responds to a large body while it is still being sent, so the client reads and
        // writes concurrently.
        let send = async {
            write.write_all(&request).await?;
            write.flush().await
        };
        let (sent, received) = tokio::join!(send, receive(&mut read, &mut buffer));
        sent?;
        received?;
        times.push(start.elapsed());
    }
}

/// Reads one response with a Content-Length.
async fn receive(stream: &mut (impl AsyncReadExt + Unpin), buffer: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    let end = loop {
        filled += read(stream, &mut buffer[filled..]).await?;
        let head = buffer[..filled]
            .windows(4)
            .position(|window| window == b"\r\n\r\n");
        if let Some(end) = head {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]);
    ensure!(
        head.starts_with("HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&buffer[..filled])
    );
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.parse::<usize>().ok()).flatten()
    });
    let mut left = length.context("a response without a length")?;
    left = left.saturating_sub(filled - end - 4);
    while left > 0 {
        left = left.saturating_sub(read(stream, buffer).await?);
    }
    Ok(())
}

async fn read(stream: &mut (impl AsyncReadExt + Unpin), buffer: &mut [u8]) -> Result<usize> {
    let read = stream.read(buffer).await?;
    ensure!(read > 0, "the server hung up");
    Ok(read)
}

/// Sends a request repeatedly over HTTP/2, like [`call_http`], without a gRPC client's overhead.
pub(crate) async fn call_grpc(
    to: Destination,
    message: Bytes,
    has_token: bool,
    mut pace: Pace,
) -> Result<Vec<Duration>> {
    const WINDOW: u32 = 1 << 20;
    let stream = to.connect().await?;
    let (mut sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(64 << 10)
        .handshake::<_, Bytes>(stream)
        .await?;
    let driver = spawn_local(connection);
    let scheme = if to.tls.is_some() { "https" } else { "http" };
    let address = to.address;
    let path = format!("{scheme}://{address}/inference.GRPCInferenceService/ModelInfer");
    let mut times = Vec::new();
    loop {
        let Some(start) = pace.turn().await else {
            driver.abort();
            return Ok(times);
        };
        sender = sender.ready().await?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&path)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if has_token {
            request = request.header("authorization", format!("Bearer {TOKEN}"));
        }
        let request = request.body(())?;
        let (response, mut body) = sender.send_request(request, false)?;
        body.send_data(message.clone(), true)?;
        let response = response.await?;
        let refusal = response.headers().get("grpc-status");
        ensure!(refusal.is_none(), "{:?}", response.headers());
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let length = data?.len();
            body.flow_control().release_capacity(length)?;
        }
        let trailers = body.trailers().await?.context("a response without a status")?;
        ensure!(
            trailers.get("grpc-status").is_some_and(|status| status == "0"),
            "{trailers:?}"
        );
        times.push(start.elapsed());
    }
}
