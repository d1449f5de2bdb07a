//! Client options, common to both transports.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use crate::{
    ClientError, ErrorKind, RetryPolicy,
    endpoint::Endpoint,
    settings::{Compression, Settings, TensorForm},
    tls::Identity,
};
use http::{HeaderValue, header::USER_AGENT};
use tensor_core::SpareBuffers;

/// Options of a client. Create it with [`HttpClient::builder`](crate::HttpClient::builder),
/// [`GrpcClient::builder`](crate::GrpcClient::builder) or, to choose the transport by URL,
/// [`builder`](crate::builder).
///
/// Building a client does no I/O. Clients are cheap to clone, and clones share their connections.
///
/// ```
/// use oip_client::{Compression, HttpClient, TensorForm};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), oip_client::ClientError> {
/// let client = HttpClient::builder("http://localhost:8080")
///     .connect_timeout(Duration::from_secs(2))
///     .request_timeout(Duration::from_secs(10))
///     .header("authorization", "Bearer 1234")
///     .tensor_form(TensorForm::Typed)
///     .compress_requests(Compression::Gzip)
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Builder<C> {
    url: String,
    settings: Settings,
    headers: Vec<(String, String)>,
    client: PhantomData<fn() -> C>,
}

/// `Clone` is not derived, because `C` need not be `Clone`.
impl<C> Clone for Builder<C> {
    fn clone(&self) -> Self {
        Self {
            url: self.url.clone(),
            settings: self.settings.clone(),
            headers: self.headers.clone(),
            client: PhantomData,
        }
    }
}

impl<C> Builder<C> {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: Vec::new(),
            client: PhantomData,
            settings: Settings::default(),
        }
    }

    /// Sets the timeout for connecting (default 5 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Sets the timeout of a call, including all attempts and the pauses between them (default 60 s). Streams
    /// have no timeout.
    ///
    /// The timeout is sent to the server: over gRPC the remaining time as `grpc-timeout`; over HTTP the full
    /// time as the parameter `timeout` of inference requests, in microseconds, unless the request has one. A
    /// server that ignores the timeout finishes the request, although the client has given up.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = Some(timeout);
        self
    }

    /// Removes the timeout of calls.
    pub fn no_request_timeout(mut self) -> Self {
        self.settings.request_timeout = None;
        self
    }

    /// Sets whether the timeout is sent to the server (default true).
    pub fn send_timeout(mut self, sends: bool) -> Self {
        self.settings.sends_timeout = sends;
        self
    }

    /// Adds a header (gRPC: metadata) to every call.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the encoding of tensors (default raw).
    pub fn tensor_form(mut self, form: TensorForm) -> Self {
        self.settings.form = form;
        self
    }

    /// Compresses inference requests. Floating-point data such as embeddings hardly compresses; text, images
    /// and ids may.
    pub fn compress_requests(mut self, compression: Compression) -> Self {
        self.settings.compression = Some(compression);
        self
    }

    /// Sets whether the server may compress inference responses with gzip or deflate (default false). The
    /// limit on response size also applies after decompression.
    pub fn accept_compressed(mut self, accepts: bool) -> Self {
        self.settings.accepts_compressed = accepts;
        self
    }

    /// Sets the maximum size of a response in bytes (default 256 MiB). The limit applies to the response as
    /// sent, to the decompressed response, and to the decoded tensors.
    pub fn max_answer_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_answer_bytes = bytes;
        self.settings.limits.tensor_bytes = bytes;
        self
    }

    /// Sets the pool of buffers for responses of 64 KiB and more (by default a private pool of up to 64 MiB).
    /// Reusing a buffer is faster, because obtaining memory from the system takes longer than copying a
    /// response into it. HTTP only.
    pub fn spare_buffers(mut self, spare: Arc<SpareBuffers>) -> Self {
        self.settings.spare = spare;
        self
    }

    /// Sets the retry policy (default: at most three attempts, if the request was not sent or the server asks
    /// to retry later).
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// Sets how NaN and the infinities are written in JSON requests (by default the request fails, with the
    /// advice to send raw tensors).
    #[cfg(feature = "http")]
    pub fn non_finite(mut self, non_finite: oip_types::rest::NonFinite) -> Self {
        self.settings.non_finite = non_finite;
        self
    }

    /// Trusts only servers whose certificates were signed by these authorities (PEM); the default is the
    /// system's authorities. For `https://` and `grpcs://`.
    pub fn authorities(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.settings.tls.authorities = Some(pem.as_ref().into());
        self
    }

    /// Sets the client certificate for servers that request one: the certificate with its chain, and its key
    /// (PEM, without a password). For `https://` and `grpcs://`.
    pub fn certificate(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.settings.tls.identity = Some(Identity {
            certificate: certificate.as_ref().into(),
            key: key.as_ref().into(),
        });
        self
    }

    /// Returns the parsed endpoint and the settings.
    pub(crate) fn finish(mut self) -> Result<(Endpoint, Settings), ClientError> {
        let endpoint = Endpoint::parse(&self.url)?;
        if !endpoint.is_encrypted && !self.settings.tls.is_empty() {
            let message = "expected https:// or grpcs:// with certificates: this connection is not encrypted";
            return Err(ClientError::new(ErrorKind::Usage, message).at(&endpoint.url));
        }
        self.settings.headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("oip-client/", env!("CARGO_PKG_VERSION"))),
        );
        let given = self.headers.iter().map(|(name, value)| (&**name, &**value));
        let settings = self.settings.with_headers(&endpoint, given)?;
        Ok((endpoint, settings))
    }
}
