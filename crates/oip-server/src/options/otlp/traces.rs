//! Settings for exporting traces.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use oip_telemetry::{Authorities, Exporter, ExporterConfig, Sampler, SpanId, read_pairs};
use serde::Deserialize;

use super::variables::{self, TRACES, or_warn};
use crate::{failure::Failure, traffic::Traces};

/// The settings for exporting traces, from the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct TraceOptions {
    /// URL of the collector.
    pub(crate) otlp_endpoint: Option<String>,

    /// The sampling ratio for requests without a `traceparent`, from 0 to 1.
    pub(crate) otlp_sample_ratio: Option<f64>,

    /// CA certificates (PEM) for collectors of traces and metrics, instead of the public ones.
    pub(crate) otlp_ca: Option<PathBuf>,

    /// Resource attributes in the form `NAME=VALUE`.
    pub(crate) otlp_attribute: Vec<String>,
}

/// Settings of a trace export that has not been started yet.
#[derive(Debug)]
pub(crate) struct TraceConfig {
    exporter: ExporterConfig,
    sampler: Sampler,
}

impl TraceOptions {
    /// Returns the trace configuration if traces are enabled. `has_metrics` specifies whether metrics are
    /// exported with the same resource attributes.
    pub(crate) fn resolve(
        self,
        has_metrics: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Option<TraceConfig>, Failure> {
        let url = self.otlp_endpoint.as_deref();
        let Some(endpoint) = TRACES.endpoint("otlp-endpoint", url, warnings)? else {
            let needless = [
                ("otlp-sample-ratio", self.otlp_sample_ratio.is_some()),
                ("otlp-attribute", !self.otlp_attribute.is_empty() && !has_metrics),
                ("otlp-ca", self.otlp_ca.is_some() && !has_metrics),
            ];
            return match needless.into_iter().find(|(_, is_said)| *is_said) {
                None => Ok(None),
                Some((option, _)) => Err(Failure::usage(format!(
                    "the configuration file: {option} needs otlp-endpoint, the collector of traces"
                ))),
            };
        };
        let ratio = match self.otlp_sample_ratio {
            Some(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            Some(ratio) => {
                return Err(Failure::usage(format!(
                    "the configuration file: otlp-sample-ratio: expected a number from 0 to 1, found {ratio}"
                )));
            }
            None => or_warn(variables::ratio(), 1.0, "every request is traced", warnings),
        };
        let (headers, resource) = (headers(TRACES.name)?, resource(&self.otlp_attribute)?);
        let authorities = authorities(TRACES.name, self.otlp_ca.as_deref())?;
        Ok(Some(TraceConfig {
            exporter: ExporterConfig::new(endpoint).with(|config| {
                config.authorities = authorities;
                config.headers = headers;
                config.resource = resource;
            }),
            sampler: Sampler::new(ratio),
        }))
    }
}

/// Returns the resource attributes from environment variables and the setting `otlp-attribute`.
pub(crate) fn resource(attributes: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut resource = vec![
        ("service.name".to_owned(), "oip-server".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id".to_owned(), instance().to_owned()),
    ];
    // A later attribute replaces an earlier one of the same name.
    let mut say = |name: String, value: String| {
        resource.retain(|(known, _)| *known != name);
        resource.push((name, value));
    };
    for (name, value) in pairs("OTEL_RESOURCE_ATTRIBUTES")? {
        say(name, value);
    }
    if let Some(name) = env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()) {
        say("service.name".to_owned(), name);
    }
    for attribute in attributes {
        match attribute.split_once('=') {
            Some((name, value)) if !name.is_empty() => say(name.to_owned(), value.to_owned()),
            _ => {
                return Err(Failure::usage(format!(
                    "the configuration file: otlp-attribute: expected NAME=VALUE, found '{attribute}'"
                )));
            }
        }
    }
    Ok(resource)
}

/// Returns the instance id. Traces and metrics of this run share it.
fn instance() -> &'static str {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    INSTANCE.get_or_init(|| SpanId::random().to_string())
}

/// Returns the headers for a signal's collector: the signal's own headers, or else the general ones.
pub(crate) fn headers(signal: &str) -> Result<Vec<(String, String)>, Failure> {
    let own = format!("OTEL_EXPORTER_OTLP_{signal}_HEADERS");
    match env::var_os(&own) {
        Some(_) => pairs(&own),
        None => pairs("OTEL_EXPORTER_OTLP_HEADERS"),
    }
}

/// Returns the CA certificates for a signal's collector: from `otlp-ca`, or else from the signal's variable,
/// or else from the general variable.
pub(crate) fn authorities(signal: &str, option: Option<&Path>) -> Result<Option<Authorities>, Failure> {
    let variables = [
        format!("OTEL_EXPORTER_OTLP_{signal}_CERTIFICATE"),
        "OTEL_EXPORTER_OTLP_CERTIFICATE".to_owned(),
    ];
    let named = option
        .map(|path| ("the configuration file: otlp-ca", path.to_owned()))
        .or_else(|| {
            variables.iter().find_map(|name| {
                let path = env::var_os(name).filter(|path| !path.is_empty())?;
                Some((name.as_str(), path.into()))
            })
        });
    let Some((name, path)) = named else {
        return Ok(None);
    };
    let wrong = |why: &dyn fmt::Display| Failure::usage(format!("{name}: {}: {why}", path.display()));
    let pem = fs::read(&path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    Authorities::from_pem(&pem)
        .map(Some)
        .map_err(|error| wrong(&error))
}

fn pairs(name: &str) -> Result<Vec<(String, String)>, Failure> {
    let text = env::var(name).unwrap_or_default();
    read_pairs(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))
}

impl TraceConfig {
    /// Starts the exporter.
    pub(crate) fn start(self) -> Result<Traces, Failure> {
        let endpoint = self.exporter.endpoint.url().to_owned();
        let exporter = Exporter::start(self.exporter)
            .map_err(|error| Failure::run(format!("cannot start a thread for traces: {error}")))?;
        tracing::info!(endpoint, "traces of requests are sent");
        Ok(Traces {
            sampler: self.sampler,
            exporter,
        })
    }
}
