//! Settings shared by both transports.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header::USER_AGENT};
use oip_types::RequestLimits;
use tensor_core::SpareBuffers;

use crate::{ClientError, ErrorKind, RetryPolicy, endpoint::Endpoint, tls::TlsSettings};

/// The encoding of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorForm {
    /// Raw bytes: the binary tensor data extension over HTTP, raw contents over gRPC. Smaller than typed
    /// values and much faster to encode and decode.
    #[default]
    Raw,
    /// Typed values: JSON over HTTP, typed contents over gRPC; for servers without raw support. 16-bit floats
    /// have no typed form in gRPC, so requests with them are sent raw.
    Typed,
}

/// Compression of bodies and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// The gzip format.
    Gzip,
    /// The zlib format, which HTTP and gRPC call "deflate".
    Deflate,
}

/// Maximum size of the spare buffers that a client keeps, in bytes.
const SPARE: u64 = 64 << 20;

/// Settings of both transports.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) sends_timeout: bool,
    pub(crate) headers: HeaderMap,
    pub(crate) form: TensorForm,
    pub(crate) compression: Option<Compression>,
    pub(crate) accepts_compressed: bool,
    pub(crate) max_answer_bytes: usize,
    pub(crate) limits: RequestLimits,
    pub(crate) retry: RetryPolicy,
    pub(crate) tls: TlsSettings,
    pub(crate) spare: Arc<SpareBuffers>,
    #[cfg(feature = "http")]
    pub(crate) non_finite: oip_types::rest::NonFinite,
}

impl Default for Settings {
    fn default() -> Self {
        let max_answer_bytes = 256 << 20;
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Some(Duration::from_secs(60)),
            sends_timeout: true,
            headers: HeaderMap::new(),
            form: TensorForm::default(),
            compression: None,
            accepts_compressed: false,
            max_answer_bytes,
            limits: RequestLimits::default().with(|limits| limits.tensor_bytes = max_answer_bytes),
            retry: RetryPolicy::default(),
            tls: TlsSettings::default(),
            spare: Arc::new(SpareBuffers::new(SPARE)),
            #[cfg(feature = "http")]
            non_finite: oip_types::rest::NonFinite::Error,
        }
    }
}

impl Settings {
    /// Returns the settings with additional headers.
    pub(crate) fn with_headers<'h>(
        &self,
        endpoint: &Endpoint,
        given: impl IntoIterator<Item = (&'h str, &'h str)>,
    ) -> Result<Self, ClientError> {
        let mut settings = self.clone();
        for (name, value) in given {
            let wrong = |what: &str| {
                let name = tensor_core::QuotedName(name);
                ClientError::new(ErrorKind::Usage, format!("header {name}: {what}")).at(&endpoint.url)
            };
            let parsed = HeaderName::try_from(name).map_err(|_| wrong("the name is malformed"))?;
            let value = HeaderValue::try_from(value)
                .map_err(|_| wrong("the value has characters that are not allowed"))?;
            if RESERVED.contains(&parsed.as_str()) {
                return Err(wrong("the client sets it itself"));
            }
            if parsed == USER_AGENT {
                settings.headers.insert(parsed, value);
            } else {
                settings.headers.append(parsed, value);
            }
        }
        Ok(settings)
    }
}

/// Headers that determine how a message is decoded. Overriding the client's values would make the message
/// unreadable.
const RESERVED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "grpc-encoding",
    "grpc-timeout",
    "host",
    "inference-header-content-length",
    "te",
    "transfer-encoding",
];
