use std::{marker::PhantomData, sync::Arc, time::Duration};

use crate::{
    ClientError, ErrorKind, RetryPolicy,
    endpoint::Endpoint,
    settings::{Compression, Settings, TensorForm},
    tls::Identity,
};
use http::{HeaderValue, header::USER_AGENT};
use tensor_core::SpareBuffers;

/// How a client is to work; made by [`HttpClient::builder`](crate::HttpClient::builder),
/// [`GrpcClient::builder`](crate::GrpcClient::builder) or, for whichever the URL asks for, [`builder`](crate::builder).
///
/// Nothing is sent before the first call. Clients are cheap to clone, and clones share their connections.
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

/// Also for clients that cannot be cloned.
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

    /// Returns how long it may take to connect (5 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Returns how long a call may take, with all its attempts and pauses (60 s). A stream may take any time.
    ///
    /// The server is told: how much of it is left by gRPC's header for that (`grpc-timeout`), how much it is
    /// by the parameter `timeout` of inference requests over HTTP, in microseconds, unless they have one.
    /// Servers that know neither do more than is needed when time is over, no worse.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = Some(timeout);
        self
    }

    /// Lets calls take any time.
    pub fn no_request_timeout(mut self) -> Self {
        self.settings.request_timeout = None;
        self
    }

    /// Returns whether the server is told of the timeout (yes).
    pub fn send_timeout(mut self, sends: bool) -> Self {
        self.settings.sends_timeout = sends;
        self
    }

    /// Sends a header, or metadata as gRPC calls it, with every call.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// In which form tensors travel (raw).
    pub fn tensor_form(mut self, form: TensorForm) -> Self {
        self.settings.form = form;
        self
    }

    /// Compresses inference requests. Floats of trained models hardly become smaller; text, images and ids may.
    pub fn compress_requests(mut self, compression: Compression) -> Self {
        self.settings.compression = Some(compression);
        self
    }

    /// Returns whether the server may compress inference answers, with gzip or deflate (no). However much
    /// they expand to, the limit on the size of answers holds.
    pub fn accept_compressed(mut self, accepts: bool) -> Self {
        self.settings.accepts_compressed = accepts;
        self
    }

    /// Bytes that an answer may have, as it is sent, again once it is decompressed, and again as tensors (256 MiB).
    pub fn max_answer_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_answer_bytes = bytes;
        self.settings.limits.tensor_bytes = bytes;
        self
    }

    /// Where answers of 64 KiB and more find memory that was used before (up to 64 MiB, of the client's own). Over HTTP: fresh
    /// memory takes longer to get from the system than an answer takes to be copied into it.
    pub fn spare_buffers(mut self, spare: Arc<SpareBuffers>) -> Self {
        self.settings.spare = spare;
        self
    }

    /// When calls are tried again (when nothing was sent, and when the server asks for patience; three attempts).
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// How floats without a JSON form are written in requests (not at all: such a request fails, with the advice to send
    /// raw tensors).
    #[cfg(feature = "http")]
    pub fn non_finite(mut self, non_finite: oip_types::rest::NonFinite) -> Self {
        self.settings.non_finite = non_finite;
        self
    }

    /// Believes servers whose certificates these authorities have signed (PEM), and no others (those that the system
    /// knows). For `https://` and `grpcs://`.
    pub fn authorities(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.settings.tls.authorities = Some(pem.as_ref().into());
        self
    }

    /// Shows servers that ask for it this certificate, with those behind it that lead to its authority, which goes with
    /// this key (PEM, without a password). For `https://` and `grpcs://`.
    pub fn certificate(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.settings.tls.identity = Some(Identity {
            certificate: certificate.as_ref().into(),
            key: key.as_ref().into(),
        });
        self
    }

    /// Returns the server's address, and how to talk to it.
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
