//! Settings that both transports of a client share.

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use oip_types::Limits;
use tensor_core::SpareBuffers;

use crate::{RetryPolicy, tls::TlsSettings};

/// In which form tensors travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorForm {
    /// As they are in memory: the binary tensor data extension over HTTP, raw contents over gRPC. Smaller and much faster.
    #[default]
    Raw,
    /// As values: JSON over HTTP, typed contents over gRPC, for servers that know nothing else. Over gRPC a request with
    /// 16-bit floats goes raw all the same, since these have no typed form.
    Typed,
}

/// How bodies and messages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// The format of gzip.
    Gzip,
    /// The format of zlib, which is what HTTP and gRPC call "deflate".
    Deflate,
}

/// Bytes of used buffers that a client keeps.
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
    pub(crate) limits: Limits,
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
            limits: Limits::default().with(|limits| limits.tensor_bytes = max_answer_bytes),
            retry: RetryPolicy::default(),
            tls: TlsSettings::default(),
            spare: Arc::new(SpareBuffers::new(SPARE)),
            #[cfg(feature = "http")]
            non_finite: oip_types::rest::NonFinite::Error,
        }
    }
}
