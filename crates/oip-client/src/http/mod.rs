//! The HTTP transport.

#[cfg(unix)]
mod blocking;
mod body;
mod calls;
#[cfg(unix)]
mod connection;
#[cfg(unix)]
mod direct;
mod encoding;
mod json;
mod message;
mod response;
#[cfg(target_os = "linux")]
mod shared_memory;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use hyper_util::client::legacy::Client;
use oip_types::{
    InferInput, InferRequest, InferResponse, ModelRef, ParameterValue, ServiceError,
    rest::{
        BINARY_DATA, EncodedBody, HEADER_LENGTH, RequestEncoding, decode_shared_response, encode_request,
    },
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

#[cfg(unix)]
pub use self::blocking::BlockingClient;
#[cfg(unix)]
use self::direct::Pool;
#[cfg(target_os = "linux")]
use self::shared_memory::connections::Connections;
use self::{
    body::Parts,
    message::Message,
    response::{HINT, MAX_REFUSAL, Response},
};
#[cfg(unix)]
use crate::patience::Patience;
use crate::{
    Builder, ClientError, ErrorKind, Result, TensorForm, connect,
    connector::Connector,
    endpoint::{Endpoint, Transport},
    offload,
    retry::Call,
    settings::Settings,
};

/// An HTTP/1.1 client. Clones share a pool of persistent connections.
///
/// Paths are those of the protocol and Triton; model names are percent-encoded.
///
/// On Linux, requests with large tensors to a Unix socket use memory shared with the server, if the server
/// supports it. The client copies the tensors into and out of that memory.
#[derive(Clone, Debug)]
pub struct HttpClient {
    way: Way,
    shared: Arc<SharedState>,
    /// Connections with shared memory; `None` if the server cannot be on this machine.
    #[cfg(target_os = "linux")]
    memory: Option<Arc<Connections>>,
}

/// How requests are sent.
#[derive(Clone, Debug)]
enum Way {
    /// Tasks of an async runtime send requests.
    Driven(Box<Client<Connector, Parts>>),
    /// The polling thread sends requests; it blocks instead of yielding.
    #[cfg(unix)]
    Direct(Arc<Pool>, Patience),
}

#[derive(Debug)]
struct SharedState {
    endpoint: Endpoint,
    settings: Settings,
}

/// Size in bytes from which JSON is encoded and decoded off the reactor thread: at about a nanosecond per
/// byte, larger JSON would delay other calls.
const LARGE: usize = 64 << 10;

/// Characters that are not percent-encoded in paths.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

impl HttpClient {
    /// Creates a builder for `http://host:port`, with or without a path prefix before `/v2`.
    pub fn builder(url: impl Into<String>) -> Builder<Self> {
        Builder::new(url)
    }

    pub(crate) fn new(endpoint: Endpoint, settings: Settings) -> Result<Self> {
        check_transport(&endpoint)?;
        let (builder, connector) = connect::pool(&endpoint, &settings, b"http/1.1")?;
        let way = Way::Driven(Box::new(builder.build(connector)));
        Ok(Self::with(way, endpoint, settings))
    }

    /// Creates a client whose calls block.
    #[cfg(unix)]
    fn blocking(endpoint: Endpoint, settings: Settings) -> Result<Self> {
        check_transport(&endpoint)?;
        if endpoint.is_encrypted {
            let message = "blocking calls are not encrypted: expected http://, or a client with a runtime";
            return Err(ClientError::new(ErrorKind::Usage, message).at(&endpoint.url));
        }
        let way = Way::Direct(Arc::new(Pool::default()), Patience::default());
        Ok(Self::with(way, endpoint, settings))
    }

    fn with(way: Way, endpoint: Endpoint, settings: Settings) -> Self {
        Self {
            way,
            #[cfg(target_os = "linux")]
            memory: endpoint.socket.is_some().then(Arc::default),
            shared: Arc::new(SharedState { endpoint, settings }),
        }
    }

    #[cfg(unix)]
    fn with_patience(&self, patience: Patience) -> Self {
        let way = match &self.way {
            Way::Driven(_) => self.way.clone(),
            Way::Direct(pool, _) => Way::Direct(pool.clone(), patience),
        };
        Self { way, ..self.clone() }
    }

    /// Returns a client that sends additional headers with every call over the same connections.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when a header is malformed or is one that the client sets itself.
    pub fn with_headers<'h>(&self, headers: impl IntoIterator<Item = (&'h str, &'h str)>) -> Result<Self> {
        let SharedState { endpoint, settings } = &*self.shared;
        let settings = settings.with_headers(endpoint, headers)?;
        let endpoint = endpoint.clone();
        Ok(Self {
            shared: Arc::new(SharedState { endpoint, settings }),
            ..self.clone()
        })
    }

    fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    fn url(&self) -> &str {
        &self.shared.endpoint.url
    }

    /// Makes a call, with retries where they are safe.
    async fn call(&self, is_read: bool, message: &Message) -> Result<Response> {
        let timeout = self.settings().request_timeout;
        let call = |timeout| Call {
            policy: &self.settings().retry,
            timeout,
            is_read,
        };
        let checked = |answer: Response| match message.is_health {
            true => Ok(answer),
            false => answer.success(),
        };
        let outcome = match &self.way {
            Way::Driven(client) => {
                let attempt = |_| async { checked(self.send(client, message.clone()).await?) };
                call(timeout).run(attempt).await
            }
            #[cfg(unix)]
            Way::Direct(pool, patience) => {
                let shorter = [timeout, patience.timeout].into_iter().flatten().min();
                let SharedState { endpoint, settings } = &*self.shared;
                call(shorter).run_here(patience, |wait| {
                    checked(pool.send(endpoint, settings, message, wait)?)
                })
            }
        };
        outcome.map_err(|error| error.at(self.url()))
    }

    /// Makes one attempt: sends a request and reads the whole response, with any status.
    async fn send(&self, client: &Client<Connector, Parts>, message: Message) -> Result<Response> {
        let SharedState { endpoint, settings } = &*self.shared;
        let uri = Uri::builder()
            .scheme(endpoint.scheme())
            .authority(endpoint.authority.clone())
            .path_and_query(format!("{}{}", endpoint.prefix, message.path))
            .build()
            .map_err(|error| ClientError::new(ErrorKind::Request, error.to_string()))?;
        let mut request = Request::new(Parts::new(message.body));
        *request.method_mut() = message.method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.extend(settings.headers.clone());
        headers.extend(message.headers);
        let response = client.request(request).await;
        let response = response.map_err(|error| connect::failed(error, HINT))?;
        let (head, body) = response.into_parts();
        // An error body is a short message or a proxy's error page; the beginning is enough.
        let body = match head.status.is_success() {
            true => body::read(&head.headers, body, settings.max_answer_bytes, &settings.spare).await?,
            false => body::read_beginning(body, MAX_REFUSAL.min(settings.max_answer_bytes)).await?,
        };
        Ok(Response::new(head, body))
    }

    async fn run(&self, request: &InferRequest) -> Result<InferResponse> {
        #[cfg(target_os = "linux")]
        if let Some(response) = self.run_shared(request).await? {
            return Ok(response);
        }
        let settings = self.settings();
        let encoded = self
            .encode(self.prepared(request))
            .await
            .map_err(|error| error.at(self.url()))?;
        let path = format!("{}/infer", model_path(request.model()));
        let answer = self.call(false, &self.infer_message(path, encoded)).await?;
        let response = self.decode(answer, settings).await;
        let response = response.map_err(|error| error.at(self.url()))?;
        #[cfg(target_os = "linux")]
        self.note_outputs(request, &response);
        Ok(response)
    }

    fn infer_message(&self, path: String, (body, compressed): (EncodedBody, Option<Bytes>)) -> Message {
        let mut headers = HeaderMap::new();
        let content_type = match body.header_length() {
            Some(length) => {
                headers.insert(HeaderName::from_static(HEADER_LENGTH), HeaderValue::from(length));
                "application/octet-stream"
            }
            None => "application/json",
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if self.settings().accepts_compressed {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
        }
        let body = match (compressed, self.settings().compression) {
            (Some(compressed), Some(compression)) => {
                let name = HeaderValue::from_static(encoding::name(compression));
                headers.insert(header::CONTENT_ENCODING, name);
                EncodedBody {
                    json: compressed,
                    binary: Vec::new(),
                }
            }
            _ => body,
        };
        Message {
            method: Method::POST,
            path,
            headers,
            body,
            is_health: false,
        }
    }

    /// Returns the request with the parameters that the client's settings require.
    fn prepared(&self, request: &InferRequest) -> InferRequest {
        let settings = self.settings();
        let mut request = request.clone();
        if let Some(timeout) = settings.request_timeout.filter(|_| settings.sends_timeout) {
            let micros = i64::try_from(timeout.as_micros()).unwrap_or(i64::MAX).max(1);
            request
                .parameters
                .entry("timeout".to_owned())
                .or_insert(ParameterValue::Int64(micros));
        }
        request
    }

    /// Returns how requests are encoded.
    fn encoding(&self) -> RequestEncoding {
        let settings = self.settings();
        let is_raw = settings.form == TensorForm::Raw;
        RequestEncoding::default().with(|encoding| {
            encoding.binary_inputs = is_raw;
            encoding.binary_outputs = is_raw;
            encoding.non_finite = settings.non_finite;
        })
    }

    /// Encodes the body of an inference request, and compresses it if configured.
    async fn encode(&self, request: InferRequest) -> Result<(EncodedBody, Option<Bytes>)> {
        let settings = self.settings();
        let is_raw = settings.form == TensorForm::Raw;
        let encoding = self.encoding();
        let compression = settings.compression;
        let bytes: usize = request.inputs.iter().map(|input| input.value.raw().len()).sum();
        let is_for_json = |input: &InferInput| input.parameters.contains_key(BINARY_DATA);
        let is_all_raw = is_raw && !request.inputs.iter().any(is_for_json);
        let is_large = bytes > LARGE && (!is_all_raw || compression.is_some());
        let encode = move || -> Result<_> {
            let body = encode_request(&request, encoding).map_err(not_encoded)?;
            let compressed = compression.map(|compression| encoding::compress(compression, &body));
            Ok((body, compressed))
        };
        self.offload(is_large, encode).await
    }

    async fn decode(&self, answer: Response, settings: &Settings) -> Result<InferResponse> {
        let limits = settings.limits.clone();
        let max_bytes = settings.max_answer_bytes;
        let is_compressed = answer.headers.contains_key(header::CONTENT_ENCODING);
        let json_len = answer.header_length().ok().flatten().unwrap_or(answer.body.len());
        let is_large = json_len > LARGE || is_compressed;
        let decode = move || {
            let answer = answer.decompressed(max_bytes)?;
            let header_length = answer.header_length()?;
            answer.expect_json()?;
            decode_shared_response(&answer.body, header_length, &limits).map_err(response::broken)
        };
        self.offload(is_large, decode).await
    }

    /// Runs `work` off the reactor thread.
    async fn offload<T: Send + 'static>(
        &self,
        is_large: bool,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if !is_large || !matches!(self.way, Way::Driven(_)) {
            return work();
        }
        offload::offload(work).await
    }
}

fn not_encoded(error: ServiceError) -> ClientError {
    ClientError::new(ErrorKind::Request, error.message()).caused_by(error)
}

/// Checks that the URL is for this transport.
fn check_transport(endpoint: &Endpoint) -> Result<()> {
    if endpoint.transport == Transport::Grpc {
        let message = "expected http://, since this is a client for HTTP";
        return Err(ClientError::new(ErrorKind::Usage, message).at(&endpoint.url));
    }
    Ok(())
}

/// Returns the percent-encoded path of a model.
fn model_path(model: ModelRef<'_>) -> String {
    match model.version() {
        None => format!("/v2/models/{}", encoded(model.name())),
        Some(version) => format!(
            "/v2/models/{}/versions/{}",
            encoded(model.name()),
            encoded(version)
        ),
    }
}

/// Percent-encodes a path segment.
fn encoded(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, PLAIN)
}

impl Builder<HttpClient> {
    /// Creates the client.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the URL, a header or a certificate is invalid, or when the URL is for
    /// another transport.
    pub fn build(self) -> Result<HttpClient> {
        let (endpoint, settings) = self.finish()?;
        HttpClient::new(endpoint, settings)
    }
}
