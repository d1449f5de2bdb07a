//! Runs inferences over connections with shared memory regions, one at a time per connection.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{
    client::conn::http2,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use oip_grpc::{
    client::{decode_response_with, encode_request},
    proto::ConnectionSharedMemoryRegisterRequest,
};
use oip_types::{CONNECTION_REGION, InferRequest, InferResponse};
use tensor_mmap::SharedMemory as Mapped;
use tokio::{io::Interest, net::UnixStream, time::timeout};

use super::{
    GrpcClient,
    connections::{Connections, GrpcConnection},
    status,
    transport::Http2Client,
};
use crate::{
    ClientError, ErrorKind, Result,
    offload::offload,
    retry::Call,
    shared_memory::{
        LARGE, descriptor, output_bytes,
        pool::{PAYS, Plan, PooledRegion},
        refusal::{BROKEN, NOT_OFFERED, PATIENCE, Refusal},
        region::Region,
    },
};

impl GrpcClient {
    /// Runs a request with its tensors in shared memory. Returns `None` without sending the request if shared
    /// memory does not pay off or the server does not support it.
    pub(super) async fn infer_shared(&self, request: &InferRequest) -> Result<Option<InferResponse>> {
        let settings = self.settings();
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let Some(plan) = memory.plan(request, settings) else {
            return Ok(None);
        };
        let request = Arc::new(request.clone());
        let call = Call {
            policy: &settings.retry,
            timeout: settings.request_timeout,
            is_read: false,
        };
        let attempt = |left| self.attempt(memory, &request, plan, left);
        call.run(attempt).await.map_err(|error| error.at(self.url()))
    }

    /// Records the size of a response received without shared memory. It becomes the estimate for the next
    /// responses of the model.
    pub(super) fn note_outputs(&self, request: &InferRequest, response: &InferResponse) {
        let bytes = output_bytes(response);
        if let Some(memory) = self.memory.as_ref().filter(|_| bytes >= PAYS) {
            memory.note_outputs(request, bytes);
        }
    }

    /// Makes one attempt over a connection with a region. Returns `None` if no such connection is available.
    async fn attempt(
        &self,
        memory: &Arc<Connections>,
        request: &Arc<InferRequest>,
        plan: Plan,
        left: Option<Duration>,
    ) -> Result<Option<InferResponse>> {
        let Some(shared) = self.connection(memory, plan).await? else {
            return Ok(None);
        };
        let placing = {
            let (region, request) = (shared.region.clone(), request.clone());
            move || region.place(&request)
        };
        let placed = match plan.inputs as usize > LARGE {
            true => offload(placing).await?,
            false => placing()?,
        };
        let (message, record) = self.request(encode_request(&placed, true), left);
        let answer = shared.connection.client.clone().model_infer(message).await;
        let failed =
            |status: tonic::Status| status::error(&status, &record, self.settings().max_answer_bytes);
        let answer = answer.map_err(failed)?.into_inner();
        let decoding = {
            let (client, region) = (self.clone(), shared.region.clone());
            move || {
                let settings = client.settings();
                let outputs = region.outputs(settings);
                let decoded = decode_response_with(answer, &settings.limits, &outputs);
                outputs.checked(decoded.map_err(|error| client.broken(error)))
            }
        };
        let mut response = match shared.region.len() as usize > LARGE {
            true => offload(decoding).await?,
            false => decoding()?,
        };
        for output in &mut response.outputs {
            output.shared_memory = None;
        }
        // After an error response the server may still write into the region, so the connection is reused
        // only after a successful response.
        if !shared.connection.transport.is_closed() {
            memory.keep(shared);
        }
        memory.note_outputs(request, output_bytes(&response));
        Ok(Some(response))
    }

    /// Returns a connection whose region has at least the planned size.
    async fn connection(
        &self,
        memory: &Arc<Connections>,
        plan: Plan,
    ) -> Result<Option<PooledRegion<GrpcConnection>>> {
        while let Some(kept) = memory.take(plan.region) {
            if !kept.connection.transport.is_closed() {
                return Ok(Some(kept));
            }
        }
        Ok(match self.register(memory, plan.region).await? {
            Ok(shared) => shared,
            Err(Refusal { pause, least }) => {
                memory.pause(pause, least);
                None
            }
        })
    }

    /// Opens a connection with a region. Returns `None` if the server cannot be reached; the caller then
    /// sends the request without a region. If that attempt fails too, its error gives the reason.
    async fn register(
        &self,
        memory: &Arc<Connections>,
        bytes: u64,
    ) -> Result<std::result::Result<Option<PooledRegion<GrpcConnection>>, Refusal>> {
        let (endpoint, settings) = (&self.shared.endpoint, self.settings());
        let Some(path) = &endpoint.socket else {
            return Ok(Ok(None));
        };
        let patience = PATIENCE.min(settings.connect_timeout);
        let Ok(Ok(stream)) = timeout(patience, UnixStream::connect(path)).await else {
            return Ok(Ok(None));
        };
        // Mapping fails when the system is out of memory or enforces a strict limit on memory.
        let Ok((mapped, passed)) = Mapped::new(bytes) else {
            return Ok(Err(Refusal::all(NOT_OFFERED)));
        };
        let stream = DescriptorStream {
            stream: TokioIo::new(stream),
            descriptor: Some(passed),
        };
        let Ok(Some(transport)) = timeout(patience, connect(memory, stream)).await else {
            return Ok(Err(Refusal::all(BROKEN)));
        };
        let client = Self::over(transport.clone(), endpoint, settings)?;
        let (message, record) = self.request(ConnectionSharedMemoryRegisterRequest {}, Some(patience));
        let asking = async {
            let mut client = client.clone();
            client.connection_shared_memory_register(message).await
        };
        let Ok(answer) = timeout(patience, asking).await else {
            return Ok(Err(Refusal::all(NOT_OFFERED)));
        };
        Ok(match answer.map(tonic::Response::into_inner) {
            // Only a server that has mapped the region can confirm its size.
            Ok(given) if given.region == CONNECTION_REGION && given.byte_size == bytes => {
                Ok(Some(PooledRegion {
                    connection: GrpcConnection { transport, client },
                    region: Region::new(mapped),
                }))
            }
            Ok(_) => Err(Refusal::all(NOT_OFFERED)),
            Err(status) => {
                let error: ClientError = status::error(&status, &record, settings.max_answer_bytes);
                Err(match error.kind() {
                    ErrorKind::Broken => Refusal::all(BROKEN),
                    _ => Refusal::with_code(error.code(), bytes),
                })
            }
        })
    }
}

/// Opens an HTTP/2 connection over `stream`. When the connection is closed, its region is removed from
/// `memory`.
async fn connect(memory: &Arc<Connections>, stream: DescriptorStream) -> Option<Http2Client> {
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .handshake(stream);
    let (connection, driving) = handshake.await.ok()?;
    let pool = Arc::downgrade(memory);
    tokio::spawn(async move {
        let _ = driving.await;
        if let Some(memory) = pool.upgrade() {
            memory.close(|line| line.transport.is_closed());
        }
    });
    Some(Http2Client::One(connection))
}

/// A Unix socket that sends a descriptor with its first bytes.
struct DescriptorStream {
    stream: TokioIo<UnixStream>,
    descriptor: Option<OwnedFd>,
}

impl Read for DescriptorStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for DescriptorStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        while let Some(descriptor) = &self.descriptor {
            let stream = self.stream.inner();
            ready!(stream.poll_write_ready(cx))?;
            let send = || descriptor::send(stream, buf, descriptor.as_fd());
            match stream.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    // The peer now has its own copy of the descriptor.
                    self.descriptor = None;
                    return Poll::Ready(sent);
                }
            }
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
