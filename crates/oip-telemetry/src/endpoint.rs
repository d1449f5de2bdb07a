//! Collector endpoints, trusted authorities, and name-value lists in the format of OpenTelemetry's
//! environment variables.

use std::fmt;

use percent_encoding::percent_decode_str;
use ureq::{
    http::{Uri, uri::Scheme},
    tls::{Certificate, PemItem, RootCerts, parse_pem},
};

/// A collector's URLs for traces and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    traces: String,
    metrics: String,
}

/// CA certificates that a collector's certificate must be signed by, instead of the public ones.
///
/// ```
/// let error = oip_telemetry::Authorities::from_pem(b"no certificate").unwrap_err();
/// assert_eq!(error.to_string(), "expected certificates in PEM, found none");
/// ```
#[derive(Clone)]
pub struct Authorities(RootCerts);

impl Authorities {
    /// Parses PEM certificates; `pem` must contain at least one.
    ///
    /// # Errors
    /// When there is no certificate, or a section is invalid.
    pub fn from_pem(pem: &[u8]) -> Result<Self, EndpointError> {
        let mut certificates = Vec::<Certificate<'static>>::new();
        for item in parse_pem(pem) {
            let item =
                item.map_err(|error| EndpointError(format!("expected certificates in PEM: {error}")))?;
            if let PemItem::Certificate(certificate) = item {
                certificates.push(certificate);
            }
        }
        match certificates.is_empty() {
            true => Err(EndpointError(
                "expected certificates in PEM, found none".to_owned(),
            )),
            false => Ok(Self(RootCerts::from(certificates))),
        }
    }

    pub(crate) fn roots(&self) -> RootCerts {
        self.0.clone()
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorities").finish_non_exhaustive()
    }
}

/// The error for an invalid URL, list of pairs or certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointError(String);

/// The paths of traces and metrics below a collector's URL.
const TRACES: &str = "/v1/traces";
const METRICS: &str = "/v1/metrics";

impl Endpoint {
    /// Parses a collector's URL; traces are sent to `/v1/traces` below it, metrics to `/v1/metrics`. The URL
    /// may already end with one of these paths.
    ///
    /// # Errors
    /// Returns what is wrong with the URL.
    pub fn parse(url: &str) -> Result<Self, EndpointError> {
        check(url)?;
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix(TRACES).unwrap_or(base);
        let base = base.strip_suffix(METRICS).unwrap_or(base);
        Ok(Self {
            traces: format!("{base}{TRACES}"),
            metrics: format!("{base}{METRICS}"),
        })
    }

    /// Parses the URL of one signal, as in `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`: messages are sent to exactly
    /// this URL.
    ///
    /// # Errors
    /// Returns what is wrong with the URL.
    pub fn exact(url: &str) -> Result<Self, EndpointError> {
        check(url)?;
        Ok(Self {
            traces: url.to_owned(),
            metrics: url.to_owned(),
        })
    }

    /// Returns the URL for traces.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.traces
    }

    /// Returns the URL for metrics.
    #[must_use]
    pub fn metrics_url(&self) -> &str {
        &self.metrics
    }
}

/// Checks that a string is a collector's URL.
fn check(url: &str) -> Result<(), EndpointError> {
    let wrong = |why: &str| {
        Err(EndpointError(format!(
            "expected the URL of a collector, such as http://127.0.0.1:4318; {why}"
        )))
    };
    // Credentials in the URL would be logged.
    if url.contains('@') {
        return wrong("found one with a password, which belongs in the variable OTEL_EXPORTER_OTLP_HEADERS");
    }
    let Ok(parsed) = url.parse::<Uri>() else {
        return wrong(&format!("found '{url}'"));
    };
    let (Some(_), Some(scheme)) = (parsed.authority(), parsed.scheme()) else {
        return wrong(&format!("found '{url}', without http:// or https:// and a host"));
    };
    if ![Scheme::HTTP, Scheme::HTTPS].contains(scheme) {
        return wrong(&format!("found '{url}'"));
    }
    if parsed.query().is_some() {
        return wrong("found one with a query");
    }
    Ok(())
}

/// Parses `name=value,name=value` with percent-encoded values, the format of `OTEL_EXPORTER_OTLP_HEADERS` and
/// `OTEL_RESOURCE_ATTRIBUTES`.
///
/// # Errors
/// Returns the name of the invalid pair, without its value, which may be secret.
pub fn read_pairs(text: &str) -> Result<Vec<(String, String)>, EndpointError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pairs = parts.enumerate().map(|(index, part)| {
        let pair = part.split_once('=').and_then(|(name, value)| {
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            let name = name.trim();
            (!name.is_empty()).then(|| (name.to_owned(), value.into_owned()))
        });
        let number = index + 1;
        pair.ok_or_else(|| {
            EndpointError(format!(
                "expected name=value, found another form in pair {number}"
            ))
        })
    });
    pairs.collect()
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EndpointError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_bases_of_the_path_for_traces() {
        for (url, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://otel.example.com/", "https://otel.example.com/v1/traces"),
            ("http://[::1]:4318/otlp", "http://[::1]:4318/otlp/v1/traces"),
            ("http://tempo:4318/v1/traces", "http://tempo:4318/v1/traces"),
        ] {
            assert_eq!(Endpoint::parse(url).expect(url).url(), expected);
        }
        let exact = Endpoint::exact("http://tempo:4318/otlp").expect("a URL");
        assert_eq!(
            (exact.url(), exact.metrics_url()),
            ("http://tempo:4318/otlp", "http://tempo:4318/otlp")
        );
        assert!(Endpoint::exact("tempo:4318").is_err());
        for url in [
            "http://p:9090/api/v1/otlp/",
            "http://p:9090/api/v1/otlp/v1/metrics",
        ] {
            let endpoint = Endpoint::parse(url).expect(url);
            assert_eq!(endpoint.metrics_url(), "http://p:9090/api/v1/otlp/v1/metrics");
            assert_eq!(endpoint.url(), "http://p:9090/api/v1/otlp/v1/traces");
        }
        for (url, part) in [
            ("", "found ''"),
            ("collector:4318", "without http://"),
            ("grpc://collector:4317", "found 'grpc://collector:4317'"),
            ("/v1/traces", "without http://"),
            ("http://user:secret@host", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("http://host?key=secret", "with a query"),
        ] {
            let message = Endpoint::parse(url).expect_err(url).to_string();
            assert!(
                message.contains(part) && !message.contains("secret"),
                "{url}: {message}"
            );
        }
    }

    #[test]
    fn pairs_are_read_without_telling_their_values() {
        let pairs = read_pairs("authorization=Basic%20c2VjcmV0, x-tenant = a ,").expect("they are pairs");
        let expected = [("authorization", "Basic c2VjcmV0"), ("x-tenant", "a")];
        assert_eq!(
            pairs,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        let message = read_pairs("a=b,secret").expect_err("it is no pair").to_string();
        assert_eq!(message, "expected name=value, found another form in pair 2");
    }
}
