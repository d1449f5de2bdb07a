//! Options for pushing metrics to a collector.

use std::time::Duration;

use clap::Args;
use oip_telemetry::{Endpoint, MetricsConfig};
use serde::Deserialize;

use oip_types::HumanDuration;

use crate::{
    failure::Failure,
    trace_options::{TraceOptions, authorities, headers, resource},
};

/// Options for pushing metrics to a collector.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[allow(
    rustdoc::bare_urls,
    clippy::doc_markdown,
    reason = "the comments are the help, for people at a terminal"
)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct MetricOptions {
    /// An OpenTelemetry collector that accepts OTLP over HTTP, such as http://127.0.0.1:4318: the metrics of /metrics are pushed
    /// there. It may be that of --otlp-endpoint [default: none]
    #[arg(long, env = "OIP_OTLP_METRICS_ENDPOINT", hide_env = true, value_name = "URL")]
    pub(crate) otlp_metrics_endpoint: Option<String>,

    /// Time between two pushes, from 1s to 1h [default: 1m]
    #[arg(long, env = "OIP_OTLP_METRICS_INTERVAL", hide_env = true, value_name = "TIME")]
    pub(crate) otlp_metrics_interval: Option<HumanDuration>,
}

/// Times between pushes that make sense.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

impl MetricOptions {
    /// These options, and `other`'s where these say nothing.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            otlp_metrics_endpoint: self.otlp_metrics_endpoint.or(other.otlp_metrics_endpoint),
            otlp_metrics_interval: self.otlp_metrics_interval.or(other.otlp_metrics_interval),
        }
    }

    /// Where metrics go, if they go anywhere. `traces` has --otlp-attribute and --otlp-ca.
    pub(crate) fn resolve(self, traces: &TraceOptions) -> Result<Option<MetricsConfig>, Failure> {
        let Some(url) = self.otlp_metrics_endpoint else {
            return match self.otlp_metrics_interval {
                None => Ok(None),
                Some(_) => Err(Failure::usage(
                    "--otlp-metrics-interval needs --otlp-metrics-endpoint, which says where metrics go",
                )),
            };
        };
        let endpoint = Endpoint::parse(&url)
            .map_err(|error| Failure::usage(format!("--otlp-metrics-endpoint: {error}")))?;
        let interval = self
            .otlp_metrics_interval
            .map_or(Duration::from_secs(60), |time| time.0);
        if !INTERVALS.contains(&interval) {
            let found = HumanDuration(interval);
            return Err(Failure::usage(format!(
                "--otlp-metrics-interval: expected a time from 1s to 1h, found {found}"
            )));
        }
        let (headers, resource) = (headers("METRICS")?, resource(&traces.otlp_attribute)?);
        let authorities = authorities("METRICS", traces.otlp_ca.as_deref())?;
        Ok(Some(MetricsConfig::new(endpoint).with(|config| {
            config.authorities = authorities;
            config.headers = headers;
            config.resource = resource;
            config.interval = interval;
        })))
    }
}
