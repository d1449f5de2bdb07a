//! The options of the REST side.

#[cfg(unix)]
use std::sync::Arc;

#[cfg(unix)]
use oip_service::OpenConnectionMemory;
use oip_service::{ByteBudget, CpuPool, TimeLimits};
use oip_types::{RequestLimits, rest::NonFinite};

use crate::AllowedHosts;

/// How the REST side works.
///
/// ```
/// use oip_http::HttpConfig;
///
/// let config = HttpConfig::default().with(|config| config.max_body_bytes = 1 << 20);
/// assert_eq!(config.max_uri_bytes, 8 << 10);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Bytes that a body may have, as it is sent and again once it is decompressed (64 MiB).
    pub max_body_bytes: usize,
    /// Bytes that the body of an answer may have (2 GiB less one: clients count in 32 bits).
    pub max_answer_bytes: usize,
    /// Bytes from which an answer to an inference is compressed, if the client asks for that (1 KiB).
    pub min_compressed_bytes: usize,
    /// Bytes that the headers of a request may have together (32 KiB).
    pub max_header_bytes: usize,
    /// Bytes that a request's target may have (8 KiB).
    pub max_uri_bytes: usize,
    /// What a request may ask for.
    pub limits: RequestLimits,
    /// How long requests may take.
    pub time: TimeLimits,
    /// Bytes of bodies in memory at once; share one budget between transports (512 MiB).
    pub budget: ByteBudget,
    /// What the server may be called by web pages ([any](AllowedHosts::any)).
    pub allowed_hosts: AllowedHosts,
    /// Threads for work that takes long, such as decompressing; share one pool between transports.
    pub cpu: CpuPool,
    /// What opens the memory that clients share over their connection (`None`: they cannot). The server's listener must make a
    /// [`ConnectionRegion`](oip_service::ConnectionRegion) of descriptors that it receives.
    #[cfg(unix)]
    pub connection_memory: Option<Arc<dyn OpenConnectionMemory>>,
    /// How floats without a JSON form are written.
    pub non_finite: NonFinite,
}

impl HttpConfig {
    /// The same after some changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            max_body_bytes: 64 << 20,
            max_answer_bytes: i32::MAX as usize,
            min_compressed_bytes: 1 << 10,
            max_header_bytes: 32 << 10,
            max_uri_bytes: 8 << 10,
            limits: RequestLimits::default(),
            time: TimeLimits::default(),
            budget: ByteBudget::new(512 << 20),
            allowed_hosts: AllowedHosts::any(),
            cpu: CpuPool::default(),
            #[cfg(unix)]
            connection_memory: None,
            non_finite: NonFinite::default(),
        }
    }
}
