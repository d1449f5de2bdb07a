//! Reads OpenTelemetry's standard environment variables for collectors, sampling and intervals. Settings
//! override them.
//!
//! Platforms set such variables for all programs, so unsupported values cause warnings, as OpenTelemetry
//! specifies. If an exporter, endpoint or protocol is unsupported, the signal is not sent. If a sampler or
//! interval is unsupported, the default applies. Invalid headers, attributes and certificates are fatal,
//! because data would otherwise be sent without a token, without its resource attributes, or to the wrong
//! receiver.

use std::{env, time::Duration};

use super::error::SettingsError;
use crate::endpoint::Endpoint;

/// A kind of data that is sent to a collector.
pub(super) struct Signal {
    /// The part of the variables' names that identifies the signal.
    pub(super) name: &'static str,
    /// What happens if a variable does not name a usable collector, as text for a warning.
    if_unusable: &'static str,
}

pub(super) const TRACES: Signal = Signal {
    name: "TRACES",
    if_unusable: "traces are not sent",
};
pub(super) const METRICS: Signal = Signal {
    name: "METRICS",
    if_unusable: "metrics are not sent",
};

/// The variable that sets the metrics interval in milliseconds.
pub(super) const INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";

const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";

impl Signal {
    /// Returns the collector at `url`, the value of `setting`, or else the one that a variable names.
    pub(super) fn endpoint(
        &self,
        setting: &str,
        url: Option<&str>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Endpoint>, SettingsError> {
        match url {
            Some(url) => {
                let endpoint = Endpoint::parse(url).map(Some);
                endpoint.map_err(|error| SettingsError::Setting(format!("{setting}: {error}")))
            }
            None => Ok(or_warn(self.of_variables(), None, self.if_unusable, warnings)),
        }
    }

    fn of_variables(&self) -> Result<Option<Endpoint>, String> {
        let exporter = format!("OTEL_{}_EXPORTER", self.name);
        match variable(&exporter).as_deref() {
            _ if is_disabled() => return Ok(None),
            Some("none") => return Ok(None),
            None | Some("otlp") => {}
            // `/metrics` serves Prometheus in any case.
            Some("prometheus") if self.name == METRICS.name => return Ok(None),
            Some(other) => return Err(wrong(&exporter, "otlp or none", other)),
        }
        let own = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", self.name);
        let general = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let endpoint = match (variable(&own), variable(general)) {
            (Some(url), _) => Endpoint::exact(&url).map_err(|error| format!("{own}: {error}"))?,
            (None, Some(url)) => Endpoint::parse(&url).map_err(|error| format!("{general}: {error}"))?,
            (None, None) => return Ok(None),
        };
        for name in [
            format!("OTEL_EXPORTER_OTLP_{}_PROTOCOL", self.name),
            "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned(),
        ] {
            match variable(&name).as_deref() {
                None => continue,
                Some("http/protobuf") => break,
                Some(other) => {
                    let expected = "http/protobuf, usually at port 4318";
                    return Err(wrong(&name, expected, other));
                }
            }
        }
        Ok(Some(endpoint))
    }
}

/// Returns the value of `said`. On an error, adds a warning that ends with `consequence` to `warnings`, and
/// returns `otherwise`.
pub(super) fn or_warn<T>(
    said: Result<T, String>,
    otherwise: T,
    consequence: &str,
    warnings: &mut Vec<String>,
) -> T {
    said.unwrap_or_else(|wrong| {
        warnings.push(format!("{wrong}; {consequence}"));
        otherwise
    })
}

/// Returns the sampling ratio for requests without a `traceparent`.
pub(super) fn ratio() -> Result<f64, String> {
    match variable(SAMPLER).as_deref() {
        None | Some("parentbased_always_on") => Ok(1.0),
        Some("parentbased_always_off") => Ok(0.0),
        Some("parentbased_traceidratio") => {
            let Some(text) = variable(SAMPLER_ARGUMENT) else {
                return Ok(1.0);
            };
            let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or_else(|| wrong(SAMPLER_ARGUMENT, "a number from 0 to 1", &text))
        }
        Some(other) => Err(wrong(
            SAMPLER,
            "parentbased_always_on, parentbased_always_off or parentbased_traceidratio",
            other,
        )),
    }
}

/// Returns the metrics interval if a variable sets it.
pub(super) fn interval() -> Result<Option<Duration>, String> {
    let Some(text) = variable(INTERVAL) else {
        return Ok(None);
    };
    let milliseconds = text.parse().map(Duration::from_millis);
    milliseconds
        .map(Some)
        .map_err(|_| wrong(INTERVAL, "milliseconds", &text))
}

fn is_disabled() -> bool {
    variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

/// Returns a variable's value. An empty value counts as unset, as OpenTelemetry specifies.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn wrong(name: &str, expected: &str, found: &str) -> String {
    format!("{name}: expected {expected}, found '{found}'")
}
