//! The gRPC transport.

mod calls;
#[cfg(target_os = "linux")]
mod connections;
#[cfg(target_os = "linux")]
mod shared_memory;
mod status;
mod transport;

use std::{sync::Arc, time::Duration};

use http::{Uri, uri::PathAndQuery};
use oip_grpc::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use tonic::{Request, Response, codec::CompressionEncoding, metadata::MetadataMap};

use self::transport::{Client, Http2Client, Record};
use crate::{
    Builder, ClientError, Compression, ErrorKind, Result,
    endpoint::{Endpoint, Transport},
    retry::Call,
    settings::Settings,
};

/// A gRPC client. Clones share one HTTP/2 connection.
///
/// The messages are a superset of KServe's and Triton's, so the client works with both.
///
/// On Linux, requests with large tensors to a Unix socket use separate connections with shared memory, if the
/// server supports shared memory. The client copies the tensors into and out of that memory.
#[derive(Clone, Debug)]
pub struct GrpcClient {
    client: Client,
    shared: Arc<SharedState>,
    /// Connections with shared memory; `None` if the server cannot be on this machine.
    #[cfg(target_os = "linux")]
    memory: Option<Arc<connections::Connections>>,
}

#[derive(Debug)]
struct SharedState {
    endpoint: Endpoint,
    settings: Settings,
}

impl GrpcClient {
    /// Creates a builder for `grpc://host:port`.
    pub fn builder(url: impl Into<String>) -> Builder<Self> {
        Builder::new(url)
    }

    pub(crate) fn new(endpoint: Endpoint, settings: Settings) -> Result<Self> {
        if endpoint.transport == Transport::Http {
            let message = "expected grpc://, since this is a client for gRPC";
            return Err(ClientError::new(ErrorKind::Usage, message).at(&endpoint.url));
        }
        let client = Self::over(Http2Client::new(&endpoint, &settings)?, &endpoint, &settings)?;
        Ok(Self {
            client,
            #[cfg(target_os = "linux")]
            memory: endpoint.socket.is_some().then(Arc::default),
            shared: Arc::new(SharedState { endpoint, settings }),
        })
    }

    /// Creates the generated client over `transport`.
    fn over(transport: Http2Client, endpoint: &Endpoint, settings: &Settings) -> Result<Client> {
        let wrong = |message: &str| ClientError::new(ErrorKind::Usage, message).at(&endpoint.url);
        let origin = Uri::builder()
            .scheme(endpoint.scheme())
            .authority(endpoint.authority.clone())
            .path_and_query(PathAndQuery::from_static("/"))
            .build()
            .map_err(|error| wrong("expected a URL such as grpc://host:8001").caused_by(error))?;
        let mut client = GrpcInferenceServiceClient::with_origin(transport, origin)
            .max_decoding_message_size(settings.max_answer_bytes)
            .max_encoding_message_size(usize::MAX);
        if settings.accepts_compressed {
            client = client
                .accept_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Deflate);
        }
        Ok(client)
    }

    /// Returns a client that sends additional metadata with every call over the same connection.
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

    /// Returns the generated client for inferences, which compresses messages if configured.
    fn inference_client(&self) -> Client {
        let client = self.client.clone();
        match self.settings().compression {
            None => client,
            Some(Compression::Gzip) => client.send_compressed(CompressionEncoding::Gzip),
            Some(Compression::Deflate) => client.send_compressed(CompressionEncoding::Deflate),
        }
    }

    /// Creates a request with the headers and the remaining time, and a record of its outcome.
    fn request<M>(&self, message: M, left: Option<Duration>) -> (Request<M>, Arc<Record>) {
        let mut request = Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.settings().headers.clone());
        if let Some(left) = left.filter(|_| self.settings().sends_timeout) {
            request.set_timeout(left);
        }
        let record = Arc::new(Record::default());
        request.extensions_mut().insert(record.clone());
        (request, record)
    }

    /// Makes a unary call, with retries where they are safe.
    async fn unary<M, T, F>(
        &self,
        client: &Client,
        is_read: bool,
        message: impl Fn() -> M,
        send: impl Fn(Client, Request<M>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<Response<T>, tonic::Status>>,
    {
        let call = Call {
            policy: &self.settings().retry,
            timeout: self.settings().request_timeout,
            is_read,
        };
        let attempt = |left| {
            let (request, record) = self.request(message(), left);
            let answer = send(client.clone(), request);
            async move {
                let failed =
                    |status: tonic::Status| status::error(&status, &record, self.settings().max_answer_bytes);
                answer.await.map(Response::into_inner).map_err(failed)
            }
        };
        call.run(attempt).await.map_err(|error| error.at(self.url()))
    }

    /// Creates the error for a response that violates the protocol.
    fn broken(&self, error: oip_types::ServiceError) -> ClientError {
        let message = format!("the response violates the protocol: {}", error.message());
        ClientError::new(ErrorKind::Protocol, message)
            .caused_by(error)
            .at(self.url())
    }
}

impl Builder<GrpcClient> {
    /// Creates the client.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the URL, a header or a certificate is invalid, or when the URL is for
    /// another transport.
    pub fn build(self) -> Result<GrpcClient> {
        let (endpoint, settings) = self.finish()?;
        GrpcClient::new(endpoint, settings)
    }
}
