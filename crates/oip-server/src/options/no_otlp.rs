//! Replaces exports to a collector in builds without the feature `otlp`: the types have no values.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::file_options::FileOptions;
use crate::{failure::Failure, metrics::Metrics, traffic::Traces};

pub(crate) struct Exports {
    pub(crate) traces: Option<TraceConfig>,
    pub(crate) metrics: Option<MetricsConfig>,
}

pub(crate) struct TraceConfig(Infallible);

pub(crate) struct MetricsConfig(Infallible);

pub(crate) struct MetricsPush(Infallible);

impl Exports {
    pub(crate) fn resolve(_: &FileOptions, _: &mut Vec<String>) -> Result<Self, Failure> {
        Ok(Self {
            traces: None,
            metrics: None,
        })
    }
}

impl TraceConfig {
    pub(crate) fn start(self) -> Result<Traces, Failure> {
        match self.0 {}
    }
}

impl MetricsPush {
    #[expect(clippy::needless_pass_by_value, reason = "a real export takes it")]
    pub(crate) fn start(_: &Arc<Metrics>, config: MetricsConfig) -> Result<Self, Failure> {
        match config.0 {}
    }

    pub(crate) fn finish(&self, _: Duration) {
        match self.0 {}
    }
}
