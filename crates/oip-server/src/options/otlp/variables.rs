//! Reads OpenTelemetry's standard environment variables for collectors, sampling and intervals. The
//! configuration file overrides them.
//!
//! Platforms set such variables for all programs, so unsupported values cause warnings, as OpenTelemetry
//! specifies. If an exporter, endpoint or protocol is unsupported, the signal is not sent. If a sampler or
//! interval is unsupported, the default applies. Invalid headers, attributes and certificates are fatal,
//! because data would otherwise be sent without a token, without its resource attributes, or to the wrong
//! receiver.

use std::{env, time::Duration};

use oip_telemetry::{Endpoint, EndpointError};

use crate::failure::Failure;

/// A kind of data that is sent to a collector.
pub(crate) struct Signal {
    /// The part of the variables' names that identifies the signal.
    pub(crate) name: &'static str,
    /// What happens if a variable does not name a usable collector, as text for a warning.
    if_unusable: &'static str,
}

pub(crate) const TRACES: Signal = Signal {
    name: "TRACES",
    if_unusable: "traces are not sent",
};
pub(crate) const METRICS: Signal = Signal {
    name: "METRICS",
    if_unusable: "metrics are not sent",
};

/// The variable that sets the metrics interval in milliseconds.
pub(crate) const INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";

const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";

impl Signal {
    /// Returns the collector that the configuration file names, or else the one that a variable names.
    pub(crate) fn endpoint(
        &self,
        setting: &str,
        url: Option<&str>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Endpoint>, Failure> {
        match url {
            Some(url) => told(
                &format!("the configuration file: {setting}"),
                Endpoint::parse(url),
            ),
            None => Ok(or_warn(self.of_variables(), None, self.if_unusable, warnings)),
        }
    }

    fn of_variables(&self) -> Result<Option<Endpoint>, Failure> {
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
            (Some(url), _) => told(&own, Endpoint::exact(&url)),
            (None, Some(url)) => told(general, Endpoint::parse(&url)),
            (None, None) => return Ok(None),
        }?;
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
        Ok(endpoint)
    }
}

fn told(name: &str, endpoint: Result<Endpoint, EndpointError>) -> Result<Option<Endpoint>, Failure> {
    let endpoint = endpoint.map(Some);
    endpoint.map_err(|error| Failure::usage(format!("{name}: {error}")))
}

/// Returns the value of `said`. On an error, adds a warning that ends with `consequence` to `warnings`, and
/// returns `otherwise`.
pub(crate) fn or_warn<T>(
    said: Result<T, Failure>,
    otherwise: T,
    consequence: &str,
    warnings: &mut Vec<String>,
) -> T {
    said.unwrap_or_else(|failure| {
        warnings.push(format!("{}; {consequence}", failure.message));
        otherwise
    })
}

/// Returns the sampling ratio for requests without a `traceparent`.
pub(crate) fn ratio() -> Result<f64, Failure> {
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
pub(crate) fn interval() -> Result<Option<Duration>, Failure> {
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

fn wrong(name: &str, expected: &str, found: &str) -> Failure {
    Failure::usage(format!("{name}: expected {expected}, found '{found}'"))
}
