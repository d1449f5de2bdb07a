//! Configuration of the REST side: limits, budgets and accepted hosts.

#[cfg(unix)]
use std::sync::Arc;

#[cfg(unix)]
use oip_resources::OpenConnectionMemory;
use oip_resources::{ByteBudget, CpuPool, TimeLimits};
use oip_types::{RequestLimits, rest::NonFinite};

use crate::AllowedHosts;

/// Configuration of the REST side.
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
    /// Maximum size of a request body in bytes, before and after decompression (default 64 MiB).
    pub max_body_bytes: usize,
    /// Maximum size of a response body in bytes (default 2 GiB minus one, because clients use 32-bit
    /// lengths).
    pub max_answer_bytes: usize,
    /// Minimum size of an inference response that is compressed on request (default 1 KiB).
    pub min_compressed_bytes: usize,
    /// Maximum size of a request's headers in bytes (default 32 KiB).
    pub max_header_bytes: usize,
    /// Maximum size of a request target in bytes (default 8 KiB).
    pub max_uri_bytes: usize,
    /// Limits on the content of a request.
    pub limits: RequestLimits,
    /// How long requests may take.
    pub time: TimeLimits,
    /// Memory budget for bodies; share one between transports (default 512 MiB).
    pub budget: ByteBudget,
    /// The host names accepted from browsers (default [any](AllowedHosts::any)).
    pub allowed_hosts: AllowedHosts,
    /// Thread pool for long tasks such as decompression; share one between transports.
    pub cpu: CpuPool,
    /// Opens memory that clients share over their connection (`None`: not supported). The server's listener
    /// must turn received descriptors into a [`ConnectionRegion`](oip_resources::ConnectionRegion).
    #[cfg(unix)]
    pub connection_memory: Option<Arc<dyn OpenConnectionMemory>>,
    /// How NaN and the infinities are written in JSON.
    pub non_finite: NonFinite,
}

impl HttpConfig {
    /// Returns the configuration with `change` applied.
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
