//! Exports traces and metrics to an OpenTelemetry collector.

use std::{sync::OnceLock, time::Duration};

use oip_telemetry::{
    ExportConfigs, Exporter, Families, Family, MetricFamily, MetricsConfig, MetricsExporter, SettingsError,
    requests::Traces,
};

use crate::{failure::Failure, options::FileOptions};

/// The settings of exports.
pub(crate) struct ExportConfig(ExportConfigs);

impl ExportConfig {
    /// Resolves the settings of the configuration file and OpenTelemetry's variables. Adds a warning for each
    /// variable that is ignored.
    pub(crate) fn resolve(file: &FileOptions, warnings: &mut Vec<String>) -> Result<Self, Failure> {
        let settings = file.exports.clone();
        let mut configs = settings
            .resolve("oip-server", env!("CARGO_PKG_VERSION"))
            .map_err(|error| match error {
                SettingsError::Setting(message) => {
                    Failure::usage(format!("the configuration file: {message}"))
                }
                error => Failure::usage(error.to_string()),
            })?;
        warnings.append(&mut configs.warnings);
        Ok(Self(configs))
    }
}

/// The running exports. Without a collector there are none.
#[derive(Default)]
pub(crate) struct Exports {
    spans: Option<Exporter>,
    /// The configuration of the export of metrics, and its exporter once it is started.
    metrics: Option<MetricsConfig>,
    pusher: OnceLock<MetricsExporter>,
}

impl Exports {
    /// Starts the export of traces. Also returns the traces, if they are exported.
    pub(crate) fn start(config: ExportConfig) -> Result<(Self, Option<Traces>), Failure> {
        let ExportConfig(configs) = config;
        let mut exports = Self {
            metrics: configs.metrics,
            ..Self::default()
        };
        let Some(config) = configs.traces else {
            return Ok((exports, None));
        };
        let endpoint = config.exporter.collector.endpoint.url().to_owned();
        let exporter = Exporter::start(config.exporter)
            .map_err(|error| Failure::run(format!("cannot start a thread for traces: {error}")))?;
        tracing::info!(endpoint, "traces of requests are sent");
        exports.spans = Some(exporter.clone());
        let traces = Traces::new(config.sampler, move |spans| exporter.export(spans));
        Ok((exports, Some(traces)))
    }

    /// Returns whether metrics are pushed to a collector.
    pub(crate) fn pushes_metrics(&self) -> bool {
        self.metrics.is_some()
    }

    /// Starts pushing the metrics that `write` writes, if a collector is configured.
    pub(crate) fn push(&self, write: impl Fn(&mut Families<'_>) + Send + 'static) -> Result<(), Failure> {
        let Some(config) = self.metrics.clone() else {
            return Ok(());
        };
        let endpoint = config.collector.endpoint.metrics_url().to_owned();
        let pusher = MetricsExporter::start(config, move || MetricFamily::collect(&write))
            .map_err(|error| Failure::run(format!("cannot start a thread for metrics: {error}")))?;
        self.pusher.get_or_init(|| pusher);
        tracing::info!(endpoint, "metrics are pushed");
        Ok(())
    }

    /// Sends what is queued, and the metrics a last time. Takes at most two seconds.
    pub(crate) fn finish(&self) {
        if let Some(spans) = &self.spans {
            spans.finish(Duration::from_secs(1));
        }
        if let Some(pusher) = self.pusher.get() {
            pusher.finish(Duration::from_secs(1));
        }
    }

    /// Writes the metrics of the exports.
    pub(crate) fn write(&self, families: &mut Families<'_>) {
        let (spans, pusher) = (self.spans.as_ref(), self.pusher.get());
        families.single(&SPANS_SENT, spans.map_or(0, Exporter::sent));
        families.single(&SPANS_DROPPED, spans.map_or(0, Exporter::dropped));
        families.single(&PUSHES, pusher.map_or(0, MetricsExporter::sent));
        families.single(&FAILED_PUSHES, pusher.map_or(0, MetricsExporter::failed));
    }
}

const SPANS_SENT: Family = Family::counter(
    "oip_trace_spans_sent_total",
    "Trace spans that the collector accepted.",
);

const SPANS_DROPPED: Family = Family::counter(
    "oip_trace_spans_dropped_total",
    "Trace spans that were dropped because the queue was full or the collector rejected them.",
);

const PUSHES: Family = Family::counter(
    "oip_metric_pushes_total",
    "How often these metrics were pushed to a collector.",
);

const FAILED_PUSHES: Family = Family::counter(
    "oip_metric_push_failures_total",
    "How often a collector rejected these metrics.",
);
