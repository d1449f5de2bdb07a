//! Pushes metrics to a collector.

use std::{sync::Arc, time::Duration};

use oip_telemetry::{MetricsConfig, MetricsExporter};

use crate::{failure::Failure, metrics::Metrics};

/// A running metrics export.
pub(crate) struct MetricsPush {
    exporter: MetricsExporter,
    /// Keeps the metrics alive while they are being pushed.
    _metrics: Arc<Metrics>,
}

impl MetricsPush {
    /// Starts pushing `metrics` to a collector.
    pub(crate) fn start(metrics: &Arc<Metrics>, config: MetricsConfig) -> Result<Self, Failure> {
        let endpoint = config.endpoint.metrics_url().to_owned();
        let exporter = metrics
            .push(config)
            .map_err(|error| Failure::run(format!("cannot start a thread for metrics: {error}")))?;
        tracing::info!(endpoint, "metrics are pushed");
        Ok(Self {
            exporter,
            _metrics: metrics.clone(),
        })
    }

    /// Pushes the metrics a last time, and waits for at most `patience` until they are sent.
    pub(crate) fn finish(&self, patience: Duration) {
        self.exporter.finish(patience);
    }
}
