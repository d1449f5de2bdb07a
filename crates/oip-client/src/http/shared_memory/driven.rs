//! Requests over connections with shared memory regions, driven by an async runtime.

use std::{io, sync::Arc};

use http::{HeaderValue, Request, header::HOST};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use oip_types::{InferRequest, InferResponse};
use tensor_mmap::SharedMemory as Mapped;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::UnixStream,
    time::timeout,
};

use super::{connections::Connections, is_long, register};
use crate::{
    ClientError, ErrorKind, Result, connect,
    http::{
        HttpClient,
        body::{self, Parts},
        direct,
        message::Message,
        response::{HINT, MAX_REFUSAL, Response},
    },
    shared_memory::{
        LARGE, descriptor, output_bytes,
        pool::{Plan, PooledRegion},
        refusal::{BROKEN, NOT_OFFERED, PATIENCE, Refusal},
        region::Region,
    },
};

type HttpRegion = PooledRegion<SendRequest<Parts>>;

/// Maximum size of the response to the registration, in bytes.
const MAX_ANSWER: usize = 64 << 10;

impl HttpClient {
    /// Makes one attempt over a connection with a region. Returns `None` if no such connection is available.
    pub(super) async fn attempt(
        &self,
        memory: &Arc<Connections>,
        request: &Arc<InferRequest>,
        plan: Plan,
    ) -> Result<Option<InferResponse>> {
        let Some(mut shared) = self.connection(memory, plan).await? else {
            return Ok(None);
        };
        let placing = {
            let (region, request) = (shared.region.clone(), request.clone());
            move || region.place(&request)
        };
        let placed = self.offload(plan.inputs as usize > LARGE, placing).await?;
        let encoded = self.encode(placed).await?;
        let message = self.infer_message(Self::infer_path(request), encoded);
        let answer = self.exchange(&mut shared.connection, message).await?;
        let is_large = shared.region.len() as usize > LARGE || is_long(&answer);
        let decoding = {
            let (client, region) = (self.clone(), shared.region.clone());
            move || client.decode_from(answer, &region)
        };
        let outcome = self.offload(is_large, decoding).await;
        let response = outcome?;
        // After an error response the server may still write into the region, so the connection is reused
        // only after a successful response.
        if !shared.connection.is_closed() {
            memory.driven.keep(shared);
        }
        memory.driven.note_outputs(request, output_bytes(&response));
        Ok(Some(response))
    }

    /// Returns a connection whose region has at least the planned size.
    async fn connection(&self, memory: &Arc<Connections>, plan: Plan) -> Result<Option<HttpRegion>> {
        while let Some(mut kept) = memory.driven.take(plan.region) {
            if kept.connection.ready().await.is_ok() {
                return Ok(Some(kept));
            }
        }
        Ok(match self.register(memory, plan.region).await {
            Ok(shared) => shared,
            Err(Refusal { pause, least }) => {
                memory.driven.pause(pause, least);
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
    ) -> std::result::Result<Option<HttpRegion>, Refusal> {
        let Some(path) = &self.shared.endpoint.socket else {
            return Ok(None);
        };
        let patience = PATIENCE.min(self.settings().connect_timeout);
        let Ok(Ok(mut stream)) = timeout(patience, UnixStream::connect(path)).await else {
            return Ok(None);
        };
        // Mapping fails when the system is out of memory or enforces a strict limit on memory.
        let (mapped, passed) = Mapped::new(bytes).map_err(|_| Refusal::all(NOT_OFFERED))?;
        let head = direct::head(&self.shared.endpoint, self.settings(), &register::message());
        let asking = async {
            stream.writable().await?;
            let send = || {
                use std::os::fd::AsFd;
                descriptor::send(&stream, &head, passed.as_fd())
            };
            let sent = stream.async_io(Interest::WRITABLE, send).await?;
            stream.write_all(&head[sent..]).await?;
            read_answer(&mut stream).await
        };
        let (status, body) = match timeout(patience, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => return Err(Refusal::all(BROKEN)),
            Err(_) => return Err(Refusal::all(NOT_OFFERED)),
        };
        register::judge(status, &body, bytes)?;
        let handshake = http1::Builder::new()
            .handshake::<_, Parts>(TokioIo::new(stream))
            .await;
        let (connection, driving) = handshake.map_err(|_| Refusal::all(BROKEN))?;
        let pool = Arc::downgrade(memory);
        tokio::spawn(async move {
            let _ = driving.await;
            // The server closed the connection, so release its region.
            if let Some(memory) = pool.upgrade() {
                memory.driven.close(SendRequest::is_closed);
            }
        });
        Ok(Some(PooledRegion {
            connection,
            region: Region::new(mapped),
        }))
    }

    /// Sends a request over a connection and reads the whole response.
    async fn exchange(&self, connection: &mut SendRequest<Parts>, message: Message) -> Result<Response> {
        let settings = self.settings();
        let endpoint = &self.shared.endpoint;
        let mut request = Request::new(Parts::new(message.body));
        *request.method_mut() = message.method;
        *request.uri_mut() = format!("{}{}", endpoint.prefix, message.path).parse().map_err(
            |error: http::uri::InvalidUri| ClientError::new(ErrorKind::Request, error.to_string()),
        )?;
        let headers = request.headers_mut();
        headers.extend(settings.headers.clone());
        headers.extend(message.headers);
        let host = HeaderValue::from_str(endpoint.authority.as_str());
        headers.insert(HOST, host.unwrap_or(HeaderValue::from_static("localhost")));
        let response = connection.send_request(request).await;
        let response = response.map_err(|error| connect::failed(error, HINT))?;
        let (head, body) = response.into_parts();
        let body = match head.status.is_success() {
            true => body::read(&head.headers, body, settings.max_answer_bytes, &settings.spare).await?,
            false => body::read_beginning(body, MAX_REFUSAL.min(settings.max_answer_bytes)).await?,
        };
        Ok(Response::new(head, body))
    }
}

/// Reads the status and body of the response to the registration. The server sends nothing after this
/// response until the next request.
async fn read_answer(stream: &mut UnixStream) -> io::Result<(u16, Vec<u8>)> {
    let mut read = Vec::with_capacity(1 << 10);
    loop {
        if read.len() > MAX_ANSWER || stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&read).map_err(io::Error::other)?;
        let httparse::Status::Complete(start) = parsed else {
            continue;
        };
        let status = head.code.unwrap_or_default();
        let length = head.headers.iter();
        let mut length = length.filter(|header| header.name.eq_ignore_ascii_case("content-length"));
        let length = length
            .next()
            .and_then(|header| str::from_utf8(header.value).ok()?.trim().parse::<usize>().ok());
        // A server that accepts the region sends a body length; for a refusal the status is enough.
        match length {
            _ if status != 200 => return Ok((status, Vec::new())),
            Some(length) if read.len() - start >= length => {
                let body = read.split_off(start);
                return match body.len() == length {
                    true => Ok((status, body)),
                    false => Err(io::ErrorKind::InvalidData.into()),
                };
            }
            Some(_) => {}
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
