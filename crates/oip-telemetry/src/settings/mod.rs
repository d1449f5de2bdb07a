//! The settings of exports to a collector, as a configuration file has them, with OpenTelemetry's environment
//! variables as a fallback.

mod error;
mod variables;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use oip_types::HumanDuration;
use serde::Deserialize;

pub use self::error::SettingsError;
use self::variables::{INTERVAL, METRICS, TRACES, or_warn};
use crate::{
    collector::CollectorConfig,
    endpoint::{Authorities, Endpoint, read_pairs},
    exporter::ExporterConfig,
    ids::SpanId,
    metrics::MetricsConfig,
    sampler::Sampler,
};

/// The settings of exports. Where one is missing, OpenTelemetry's environment variables apply.
///
/// ```
/// use oip_telemetry::ExportSettings;
///
/// let mut settings = ExportSettings::default();
/// settings.otlp_endpoint = Some("http://127.0.0.1:4318".to_owned());
/// settings.otlp_sample_ratio = Some(0.1);
/// let configs = settings.resolve("shop", "1.0").unwrap();
/// assert_eq!(configs.traces.unwrap().exporter.collector.endpoint.url(), "http://127.0.0.1:4318/v1/traces");
/// assert!(configs.metrics.is_none());
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[non_exhaustive]
pub struct ExportSettings {
    /// URL of the collector of traces.
    pub otlp_endpoint: Option<String>,

    /// The sampling ratio for requests without a `traceparent`, from 0 to 1.
    pub otlp_sample_ratio: Option<f64>,

    /// CA certificates (PEM) for collectors of traces and metrics, instead of the public ones.
    pub otlp_ca: Option<PathBuf>,

    /// Resource attributes in the form `NAME=VALUE`.
    pub otlp_attribute: Vec<String>,

    /// URL of the collector of metrics, which may be the same as for traces.
    pub otlp_metrics_endpoint: Option<String>,

    /// The interval between pushes of metrics.
    pub otlp_metrics_interval: Option<HumanDuration>,
}

/// The exports that are enabled.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportConfigs {
    /// The export of traces.
    pub traces: Option<TraceConfig>,
    /// The export of metrics.
    pub metrics: Option<MetricsConfig>,
    /// A warning for each environment variable that is ignored.
    pub warnings: Vec<String>,
}

/// The export of traces.
#[derive(Debug)]
#[non_exhaustive]
pub struct TraceConfig {
    /// The exporter's configuration.
    pub exporter: ExporterConfig,
    /// Decides which requests are traced.
    pub sampler: Sampler,
}

/// Intervals between pushes that are accepted.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

impl ExportSettings {
    /// Returns the exports that the settings and the environment enable. `name` and `version` are the
    /// program's, for the resource attributes.
    ///
    /// # Errors
    /// When a setting is wrong, or has no effect because no collector is set. Wrong environment variables only
    /// cause warnings, except headers, CA certificates and resource attributes.
    pub fn resolve(self, name: &str, version: &str) -> Result<ExportConfigs, SettingsError> {
        let mut warnings = Vec::new();
        let program = (name, version);
        let metrics = self.metrics(program, &mut warnings)?;
        let traces = self.traces(program, metrics.is_some(), &mut warnings)?;
        Ok(ExportConfigs {
            traces,
            metrics,
            warnings,
        })
    }

    /// Returns the export of metrics, if it is enabled.
    fn metrics(
        &self,
        program: (&str, &str),
        warnings: &mut Vec<String>,
    ) -> Result<Option<MetricsConfig>, SettingsError> {
        let url = self.otlp_metrics_endpoint.as_deref();
        let Some(endpoint) = METRICS.endpoint("otlp-metrics-endpoint", url, warnings)? else {
            return match self.otlp_metrics_interval {
                None => Ok(None),
                Some(_) => Err(SettingsError::Setting(
                    "otlp-metrics-interval needs otlp-metrics-endpoint, the collector of metrics".to_owned(),
                )),
            };
        };
        let interval = match self.otlp_metrics_interval {
            Some(HumanDuration(time)) => {
                checked(time, "otlp-metrics-interval").map_err(SettingsError::Setting)?
            }
            None => {
                let said = variables::interval();
                let said = said.and_then(|time| time.map(|time| checked(time, INTERVAL)).transpose());
                let said = or_warn(said, None, "metrics are sent every 60 s", warnings);
                said.unwrap_or(Duration::from_secs(60))
            }
        };
        let collector = self.collector(endpoint, METRICS.name, program)?;
        Ok(Some(
            MetricsConfig::new(collector).with(|config| config.interval = interval),
        ))
    }

    /// Returns the export of traces, if it is enabled. `has_metrics` specifies whether metrics are exported
    /// with the same resource attributes.
    fn traces(
        &self,
        program: (&str, &str),
        has_metrics: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Option<TraceConfig>, SettingsError> {
        let url = self.otlp_endpoint.as_deref();
        let Some(endpoint) = TRACES.endpoint("otlp-endpoint", url, warnings)? else {
            let needless = [
                ("otlp-sample-ratio", self.otlp_sample_ratio.is_some()),
                ("otlp-attribute", !self.otlp_attribute.is_empty() && !has_metrics),
                ("otlp-ca", self.otlp_ca.is_some() && !has_metrics),
            ];
            return match needless.into_iter().find(|(_, is_said)| *is_said) {
                None => Ok(None),
                Some((option, _)) => Err(SettingsError::Setting(format!(
                    "{option} needs otlp-endpoint, the collector of traces"
                ))),
            };
        };
        let ratio = match self.otlp_sample_ratio {
            Some(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            Some(ratio) => {
                return Err(SettingsError::Setting(format!(
                    "otlp-sample-ratio: expected a number from 0 to 1, found {ratio}"
                )));
            }
            None => or_warn(variables::ratio(), 1.0, "every request is traced", warnings),
        };
        let collector = self.collector(endpoint, TRACES.name, program)?;
        Ok(Some(TraceConfig {
            exporter: ExporterConfig::new(collector),
            sampler: Sampler::new(ratio),
        }))
    }

    /// Returns the settings of the connection to a signal's collector.
    fn collector(
        &self,
        endpoint: Endpoint,
        signal: &str,
        program: (&str, &str),
    ) -> Result<CollectorConfig, SettingsError> {
        let (headers, resource) = (headers(signal)?, self.resource(program)?);
        let authorities = authorities(signal, self.otlp_ca.as_deref())?;
        Ok(CollectorConfig::new(endpoint).with(|config| {
            config.headers = headers;
            config.resource = resource;
            config.authorities = authorities;
        }))
    }

    /// Returns the resource attributes from environment variables and the setting `otlp-attribute`.
    fn resource(&self, (name, version): (&str, &str)) -> Result<Vec<(String, String)>, SettingsError> {
        let mut resource = vec![
            ("service.name".to_owned(), name.to_owned()),
            ("service.version".to_owned(), version.to_owned()),
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
        for attribute in &self.otlp_attribute {
            match attribute.split_once('=') {
                Some((name, value)) if !name.is_empty() => say(name.to_owned(), value.to_owned()),
                _ => {
                    return Err(SettingsError::Setting(format!(
                        "otlp-attribute: expected NAME=VALUE, found '{attribute}'"
                    )));
                }
            }
        }
        Ok(resource)
    }
}

/// Returns an interval if it is acceptable. `name` is the setting or variable, for the error.
fn checked(time: Duration, name: &str) -> Result<Duration, String> {
    let found = HumanDuration(time);
    let is_good = INTERVALS.contains(&time);
    is_good
        .then_some(time)
        .ok_or_else(|| format!("{name}: expected a time from 1s to 1h, found {found}"))
}

/// Returns the instance id. Traces and metrics of this run share it.
fn instance() -> &'static str {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    INSTANCE.get_or_init(|| SpanId::random().to_string())
}

/// Returns the headers for a signal's collector: the signal's own headers, or else the general ones.
fn headers(signal: &str) -> Result<Vec<(String, String)>, SettingsError> {
    let own = format!("OTEL_EXPORTER_OTLP_{signal}_HEADERS");
    match env::var_os(&own) {
        Some(_) => pairs(&own),
        None => pairs("OTEL_EXPORTER_OTLP_HEADERS"),
    }
}

/// Returns the CA certificates for a signal's collector: from `otlp-ca`, or else from the signal's variable,
/// or else from the general variable.
fn authorities(signal: &str, setting: Option<&Path>) -> Result<Option<Authorities>, SettingsError> {
    let read = |path: &Path| {
        let pem = fs::read(path).map_err(|error| format!("cannot be read: {error}"))?;
        Authorities::from_pem(&pem).map_err(|error| error.to_string())
    };
    let wrong = |name: &str, path: &Path, why: String| format!("{name}: {}: {why}", path.display());
    if let Some(path) = setting {
        let read = read(path).map_err(|why| SettingsError::Setting(wrong("otlp-ca", path, why)));
        return read.map(Some);
    }
    let variables = [
        format!("OTEL_EXPORTER_OTLP_{signal}_CERTIFICATE"),
        "OTEL_EXPORTER_OTLP_CERTIFICATE".to_owned(),
    ];
    let named = variables.iter().find_map(|name| {
        let path = env::var_os(name).filter(|path| !path.is_empty())?;
        Some((name, PathBuf::from(path)))
    });
    let Some((name, path)) = named else {
        return Ok(None);
    };
    let read = read(&path).map_err(|why| SettingsError::Variable(wrong(name, &path, why)));
    read.map(Some)
}

fn pairs(name: &str) -> Result<Vec<(String, String)>, SettingsError> {
    let text = env::var(name).unwrap_or_default();
    read_pairs(&text).map_err(|error| SettingsError::Variable(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        let set = |change: fn(&mut ExportSettings)| {
            let mut settings = ExportSettings::default();
            change(&mut settings);
            settings.resolve("test", "0").unwrap_err()
        };
        for (change, expected) in [
            (
                (|settings| {
                    settings.otlp_endpoint = Some("http://127.0.0.1:1".to_owned());
                    settings.otlp_sample_ratio = Some(1.5);
                }) as fn(&mut ExportSettings),
                "otlp-sample-ratio: expected a number from 0 to 1, found 1.5",
            ),
            (
                |settings| {
                    settings.otlp_metrics_endpoint = Some("http://127.0.0.1:1".to_owned());
                    settings.otlp_metrics_interval = Some(HumanDuration(Duration::ZERO));
                },
                "otlp-metrics-interval: expected a time from 1s to 1h, found 0s",
            ),
            (
                |settings| {
                    settings.otlp_endpoint = Some("http://127.0.0.1:1".to_owned());
                    settings.otlp_attribute = vec!["team".to_owned()];
                },
                "otlp-attribute: expected NAME=VALUE, found 'team'",
            ),
        ] {
            assert_eq!(set(change), SettingsError::Setting(expected.to_owned()));
        }
    }
}
