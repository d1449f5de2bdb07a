//! Metrics on their way to a collector.

use std::{sync::Arc, time::Duration};

use oip_telemetry::{MetricsConfig, MetricsExporter};

use crate::{failure::Failure, metrics::Metrics};

/// Metrics that are pushed.
pub(crate) struct Pushed {
    exporter: MetricsExporter,
    /// Pushed metrics live as long.
    _metrics: Arc<Metrics>,
}

impl Pushed {
    /// Pushes once more, and waits for that at most so long.
    pub(crate) fn finish(&self, patience: Duration) {
        self.exporter.finish(patience);
    }
}

/// Starts to push.
pub(crate) fn start(metrics: &Arc<Metrics>, config: MetricsConfig) -> Result<Pushed, Failure> {
    let endpoint = config.endpoint.metrics_url().to_owned();
    let exporter = metrics
        .push(config)
        .map_err(|error| Failure::run(format!("the system gives no thread for metrics: {error}")))?;
    tracing::info!(endpoint, "metrics are pushed");
    Ok(Pushed {
        exporter,
        _metrics: metrics.clone(),
    })
}
