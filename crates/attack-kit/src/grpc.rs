//! gRPC over plain HTTP/2 streams: arbitrary messages, arbitrary flow-control windows, and unread responses.

use std::{future::poll_fn, io::Write, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use h2::{
    RecvStream, SendStream,
    client::{self, SendRequest},
};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::{net::TcpStream, task::JoinHandle};

/// The inference method to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The unary call `ModelInfer`.
    Unary,
    /// The streaming call `ModelStreamInfer`.
    Stream,
}

impl Method {
    fn path(self) -> &'static str {
        match self {
            Self::Unary => "/inference.GRPCInferenceService/ModelInfer",
            Self::Stream => "/inference.GRPCInferenceService/ModelStreamInfer",
        }
    }
}

/// A message with its five-byte frame header.
#[derive(Clone)]
pub struct FramedMessage {
    bytes: Bytes,
    is_compressed: bool,
}

impl FramedMessage {
    /// Frames an uncompressed message.
    #[must_use]
    pub fn plain(message: &[u8]) -> Self {
        Self::new(message, false)
    }

    /// Frames a message compressed with gzip.
    #[must_use]
    pub fn gzip(message: &[u8]) -> Self {
        Self::new(&gzip(message), true)
    }

    fn new(message: &[u8], is_compressed: bool) -> Self {
        let mut bytes = BytesMut::with_capacity(5 + message.len());
        bytes.put_u8(is_compressed.into());
        bytes.put_u32(message.len() as u32);
        bytes.put_slice(message);
        Self {
            bytes: bytes.freeze(),
            is_compressed,
        }
    }

    /// Returns the size of the framed message on the wire.
    #[must_use]
    pub fn wire_length(&self) -> usize {
        self.bytes.len()
    }
}

/// Compresses bytes with gzip.
#[must_use]
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.unwrap_or_default()
}

/// The response to a call.
#[derive(Debug)]
pub struct GrpcResponse {
    /// The gRPC status code.
    pub code: u32,
    /// The message of the gRPC status.
    pub message: String,
    /// All trailers of the response.
    pub trailers: HeaderMap,
    /// The framed messages of the response.
    pub body: Vec<u8>,
}

/// An HTTP/2 connection, shared by its streams; closed on drop.
pub struct Grpc {
    send: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Grpc {
    /// Connects with flow-control windows of ordinary size.
    ///
    /// # Errors
    /// When the server is unreachable.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        Self::connect_with_window(address, 1 << 20).await
    }

    /// Connects with a flow-control window of `window` bytes for the responses of each stream.
    ///
    /// # Errors
    /// When the server is unreachable.
    pub async fn connect_with_window(address: SocketAddr, window: u32) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (send, connection) = client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(1 << 24)
            .handshake(stream)
            .await?;
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Self { send, driver })
    }

    /// Waits until the connection is closed.
    pub async fn closed(&mut self) {
        let _ = (&mut self.driver).await;
    }

    /// Starts a call. The caller sends the messages and reads the responses.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn begin(
        &self,
        method: Method,
        is_compressed: bool,
    ) -> Result<(client::ResponseFuture, SendStream<Bytes>)> {
        let encoding = HeaderValue::from_static(if is_compressed { "gzip" } else { "identity" });
        let headers = HeaderMap::from_iter([(HeaderName::from_static("grpc-encoding"), encoding)]);
        self.begin_with(method, &headers).await
    }

    /// Starts a call with additional headers.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn begin_with(
        &self,
        method: Method,
        headers: &HeaderMap,
    ) -> Result<(client::ResponseFuture, SendStream<Bytes>)> {
        let mut request = Request::post(format!("http://127.0.0.1{}", method.path()))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut send = self.send.clone().ready().await?;
        Ok(send.send_request(request.body(())?, false)?)
    }

    /// Sends a single message.
    ///
    /// # Errors
    /// When the connection or the stream is closed.
    pub async fn send(&self, method: Method, message: &FramedMessage) -> Result<client::ResponseFuture> {
        let (response, mut stream) = self.begin(method, message.is_compressed).await?;
        // An early response ends the stream before the message is completely sent; only the response matters.
        let _ = write(&mut stream, message.bytes.clone(), true).await;
        Ok(response)
    }

    /// Makes a call with one message and reads the whole response.
    ///
    /// # Errors
    /// When the connection or the stream is closed before a status arrives.
    pub async fn call(&self, method: Method, message: &FramedMessage) -> Result<GrpcResponse> {
        let response = self.send(method, message).await?.await?;
        let (head, mut body) = response.into_parts();
        let mut received = Vec::new();
        while let Some(frame) = body.data().await {
            let frame = frame?;
            body.flow_control().release_capacity(frame.len())?;
            received.extend_from_slice(&frame);
        }
        // A call that fails immediately has its status in the headers.
        let trailers = body.trailers().await?.unwrap_or(head.headers);
        let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
        // A stream reports errors of its requests in messages, not in this status.
        let code = text("grpc-status")
            .context("the response has no status")?
            .parse()?;
        let message = text("grpc-message").unwrap_or_default().to_owned();
        Ok(GrpcResponse {
            code,
            message,
            trailers,
            body: received,
        })
    }
}

/// Sends another message on an open stream.
///
/// # Errors
/// When the stream is closed.
pub async fn write_message(stream: &mut SendStream<Bytes>, message: &FramedMessage) -> Result<()> {
    write(stream, message.bytes.clone(), false).await
}

/// Sends bytes as flow control allows.
///
/// # Errors
/// When the stream is closed.
async fn write(stream: &mut SendStream<Bytes>, mut bytes: Bytes, is_last: bool) -> Result<()> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = poll_fn(|context| stream.poll_capacity(context)).await;
        let room = room.context("the stream is closed")??;
        let piece = bytes.split_to(room.min(bytes.len()));
        stream.send_data(piece, is_last && bytes.is_empty())?;
    }
    Ok(())
}

/// Reads a response until the stream ends or is reset. Enlarges the flow-control window by one byte per
/// second.
pub async fn read_slowly(body: &mut RecvStream) {
    while let Some(Ok(frame)) = body.data().await {
        for _ in 0..frame.len() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let _ = body.flow_control().release_capacity(1);
        }
    }
}
