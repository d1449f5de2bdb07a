//! Settings for pushing metrics.

use std::time::Duration;

use oip_telemetry::MetricsConfig;
use serde::Deserialize;

use oip_types::HumanDuration;

use super::{
    traces::{TraceOptions, authorities, headers, resource},
    variables::{self, INTERVAL, METRICS, or_warn},
};
use crate::failure::Failure;

/// The settings for exporting metrics, from the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct MetricOptions {
    /// URL of the collector, which may be the same as for traces.
    pub(crate) otlp_metrics_endpoint: Option<String>,

    /// The interval between pushes.
    pub(crate) otlp_metrics_interval: Option<HumanDuration>,
}

/// Intervals that the setting accepts.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

fn sensible(name: &str, time: Duration) -> Result<Duration, Failure> {
    if INTERVALS.contains(&time) {
        return Ok(time);
    }
    let found = HumanDuration(time);
    Err(Failure::usage(format!(
        "{name}: expected a time from 1s to 1h, found {found}"
    )))
}

impl MetricOptions {
    /// Returns the exporter's configuration, if the export is enabled. `traces` has the settings
    /// `otlp-attribute` and `otlp-ca`.
    pub(crate) fn resolve(
        self,
        traces: &TraceOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Option<MetricsConfig>, Failure> {
        let url = self.otlp_metrics_endpoint.as_deref();
        let Some(endpoint) = METRICS.endpoint("otlp-metrics-endpoint", url, warnings)? else {
            return match self.otlp_metrics_interval {
                None => Ok(None),
                Some(_) => Err(Failure::usage(
                    "the configuration file: otlp-metrics-interval needs otlp-metrics-endpoint, the \
                     collector of metrics",
                )),
            };
        };
        let interval = match self.otlp_metrics_interval {
            Some(HumanDuration(time)) => sensible("the configuration file: otlp-metrics-interval", time)?,
            None => {
                let said = variables::interval();
                let said = said.and_then(|time| time.map(|time| sensible(INTERVAL, time)).transpose());
                let said = or_warn(said, None, "metrics are sent every 60 s", warnings);
                said.unwrap_or(Duration::from_secs(60))
            }
        };
        let (headers, resource) = (headers(METRICS.name)?, resource(&traces.otlp_attribute)?);
        let authorities = authorities(METRICS.name, traces.otlp_ca.as_deref())?;
        Ok(Some(MetricsConfig::new(endpoint).with(|config| {
            config.authorities = authorities;
            config.headers = headers;
            config.resource = resource;
            config.interval = interval;
        })))
    }
}
