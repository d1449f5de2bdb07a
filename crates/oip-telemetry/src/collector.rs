//! The collector of an exporter: where it is, and how to send to it.

use std::time::Duration;

use crate::endpoint::{Authorities, Endpoint};

/// Configuration of the connection to a collector, of traces or of metrics.
///
/// ```
/// use oip_telemetry::{CollectorConfig, Endpoint};
///
/// let endpoint = Endpoint::parse("http://127.0.0.1:4318")?;
/// let collector = CollectorConfig::new(endpoint).with(|config| {
///     config.headers = vec![("x-token".to_owned(), "secret".to_owned())];
/// });
/// assert_eq!(collector.endpoint.url(), "http://127.0.0.1:4318/v1/traces");
/// # Ok::<(), oip_telemetry::EndpointError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CollectorConfig {
    /// The collector's address.
    pub endpoint: Endpoint,
    /// Headers of each request to the collector, such as authorization.
    pub headers: Vec<(String, String)>,
    /// CA certificates that the collector's certificate is verified against; `None` for the public ones.
    pub authorities: Option<Authorities>,
    /// Attributes of the program: `service.name` and so on.
    pub resource: Vec<(String, String)>,
    /// Timeout of a request to the collector.
    pub timeout: Duration,
    /// Initial back-off after a failure. It doubles each time, up to 30 seconds for traces, and up to the
    /// interval for metrics.
    pub back_off: Duration,
}

impl CollectorConfig {
    /// Creates a configuration without headers or resource attributes.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            headers: Vec::new(),
            authorities: None,
            resource: Vec::new(),
            timeout: Duration::from_secs(10),
            back_off: Duration::from_secs(1),
        }
    }

    /// Returns the configuration with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
