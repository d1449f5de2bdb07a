//! Traces and metrics that are sent to an OpenTelemetry collector.

mod metrics;
mod pushed;
mod traces;
mod variables;

use super::file_options::FileOptions;
use crate::failure::Failure;
pub(crate) use oip_telemetry::MetricsConfig;

pub(crate) use self::{
    metrics::MetricOptions,
    pushed::MetricsPush,
    traces::{TraceConfig, TraceOptions},
};

/// The exports that are enabled.
pub(crate) struct Exports {
    pub(crate) traces: Option<TraceConfig>,
    pub(crate) metrics: Option<MetricsConfig>,
}

impl Exports {
    /// Resolves the settings of the configuration file and OpenTelemetry's variables. Adds a warning for each
    /// variable that is ignored.
    pub(crate) fn resolve(options: &FileOptions, warnings: &mut Vec<String>) -> Result<Self, Failure> {
        let metrics = options.metrics.clone().resolve(&options.traces, warnings)?;
        let traces = options.traces.clone().resolve(metrics.is_some(), warnings)?;
        Ok(Self { traces, metrics })
    }
}
