//! Options for traces.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use clap::Args;
use oip_telemetry::{Authorities, Endpoint, Exporter, ExporterConfig, Sampler, SpanId, read_pairs};
use serde::Deserialize;

use crate::{failure::Failure, traffic::Traces};

/// Options for traces by OpenTelemetry.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[allow(
    rustdoc::bare_urls,
    clippy::doc_markdown,
    clippy::doc_link_with_quotes,
    reason = "the comments are the help, for people at a terminal"
)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct TraceOptions {
    /// An OpenTelemetry collector that accepts OTLP over HTTP, such as http://127.0.0.1:4318: requests that run models are
    /// traced. OTEL_EXPORTER_OTLP_HEADERS sets headers for it [default: none]
    #[arg(long, env = "OIP_OTLP_ENDPOINT", hide_env = true, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,

    /// The fraction of requests that is traced, from 0 to 1, for requests without a traceparent [default: 1]
    #[arg(long, env = "OIP_OTLP_SAMPLE_RATIO", hide_env = true, value_name = "RATIO")]
    pub(crate) otlp_sample_ratio: Option<f64>,

    /// Certificates (PEM) of trusted authorities for collectors, of traces and metrics, instead of the authorities that browsers
    /// trust [default: the file of OTEL_EXPORTER_OTLP_CERTIFICATE]
    #[arg(long, env = "OIP_OTLP_CA", hide_env = true, value_name = "FILE")]
    pub(crate) otlp_ca: Option<PathBuf>,

    /// A resource attribute, in addition to OTEL_RESOURCE_ATTRIBUTES, such as deployment.environment.name=test. May be given
    /// several times
    #[arg(long, env = "OIP_OTLP_ATTRIBUTE", hide_env = true, value_name = "NAME=VALUE")]
    pub(crate) otlp_attribute: Vec<String>,
}

/// Traces that are to be started.
#[derive(Debug)]
pub(crate) struct TraceConfig {
    exporter: ExporterConfig,
    sampler: Sampler,
}

impl TraceOptions {
    /// These options, and `other`'s where these say nothing.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            otlp_endpoint: self.otlp_endpoint.or(other.otlp_endpoint),
            otlp_sample_ratio: self.otlp_sample_ratio.or(other.otlp_sample_ratio),
            otlp_ca: self.otlp_ca.or(other.otlp_ca),
            otlp_attribute: if self.otlp_attribute.is_empty() {
                other.otlp_attribute
            } else {
                self.otlp_attribute
            },
        }
    }

    /// Where traces go, if they go anywhere. `has_metrics` is whether metrics do, as the same program.
    pub(crate) fn resolve(self, has_metrics: bool) -> Result<Option<TraceConfig>, Failure> {
        let wrong = |option: &str, why: &dyn std::fmt::Display| Failure::usage(format!("{option}: {why}"));
        let Some(url) = self.otlp_endpoint else {
            let needless = [
                ("--otlp-sample-ratio", self.otlp_sample_ratio.is_some()),
                (
                    "--otlp-attribute",
                    !self.otlp_attribute.is_empty() && !has_metrics,
                ),
                ("--otlp-ca", self.otlp_ca.is_some() && !has_metrics),
            ];
            return match needless.into_iter().find(|(_, is_said)| *is_said) {
                None => Ok(None),
                Some((option, _)) => Err(Failure::usage(format!(
                    "{option} needs --otlp-endpoint, which says where traces go"
                ))),
            };
        };
        let endpoint = Endpoint::parse(&url).map_err(|error| wrong("--otlp-endpoint", &error))?;
        let ratio = self.otlp_sample_ratio.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&ratio) {
            let why = format!("expected a number from 0 to 1, found {ratio}");
            return Err(wrong("--otlp-sample-ratio", &why));
        }
        let (headers, resource) = (headers("TRACES")?, resource(&self.otlp_attribute)?);
        let authorities = authorities("TRACES", self.otlp_ca.as_deref())?;
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

/// What the server says of itself, by the variables and the option `--otlp-attribute`.
pub(crate) fn resource(attributes: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut resource = vec![
        ("service.name".to_owned(), "oip-server".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id".to_owned(), instance().to_owned()),
    ];
    // Later values win.
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
                    "--otlp-attribute: expected NAME=VALUE, found '{attribute}'"
                )));
            }
        }
    }
    Ok(resource)
}

/// One name for both traces and metrics of this run.
fn instance() -> &'static str {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    INSTANCE.get_or_init(|| SpanId::random().to_string())
}

/// Headers for the collector of a signal: those that are for it, else those for all.
pub(crate) fn headers(signal: &str) -> Result<Vec<(String, String)>, Failure> {
    let own = format!("OTEL_EXPORTER_OTLP_{signal}_HEADERS");
    match env::var_os(&own) {
        Some(_) => pairs(&own),
        None => pairs("OTEL_EXPORTER_OTLP_HEADERS"),
    }
}

/// Authorities of a signal's collector: those of --otlp-ca, else of the variable for this signal, else of that for all.
pub(crate) fn authorities(signal: &str, option: Option<&Path>) -> Result<Option<Authorities>, Failure> {
    let variables = [
        format!("OTEL_EXPORTER_OTLP_{signal}_CERTIFICATE"),
        "OTEL_EXPORTER_OTLP_CERTIFICATE".to_owned(),
    ];
    let named = option.map(|path| ("--otlp-ca", path.to_owned())).or_else(|| {
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
    /// Starts the way to the collector.
    pub(crate) fn start(self) -> Result<Traces, Failure> {
        let endpoint = self.exporter.endpoint.url().to_owned();
        let exporter = Exporter::start(self.exporter)
            .map_err(|error| Failure::run(format!("the system gives no thread for traces: {error}")))?;
        tracing::info!(endpoint, "traces of requests are sent");
        Ok(Traces {
            sampler: self.sampler,
            exporter,
        })
    }
}
