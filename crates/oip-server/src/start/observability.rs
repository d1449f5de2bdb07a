//! Observability: metrics, the console, and the records of each request.

use std::{env, sync::Arc, time::Duration};

use axum::Router;
use oip_http::HttpConfig;
use oip_service::RequestIds;

use super::models::Models;
use crate::{
    failure::Failure,
    metrics::{Counts, Metrics},
    options::{PageConfig, otlp::MetricsPush},
    telemetry::Log,
    traffic::{Aliases, Load, Traffic, Transport},
};

/// The observability of a running server.
pub(super) struct Observability {
    /// The settings for observing requests.
    pub(super) traffic: Arc<Traffic>,
    pushed: Option<MetricsPush>,
}

impl Observability {
    /// Starts counting and observing requests. Also returns the pages that are served next to the protocol's
    /// paths.
    pub(super) fn start(
        models: &Models,
        http: &HttpConfig,
        counts: Counts,
        pages: PageConfig,
        log: &Log,
    ) -> Result<(Self, Router), Failure> {
        let is_counted = pages.metrics || pages.pushed_metrics.is_some();
        let totals = is_counted.then(|| counts.totals.clone());
        let records = counts.records.clone();
        let metrics = is_counted.then(|| Arc::new(Metrics::new(models.engine.clone(), http, counts)));
        let pushed = match (&metrics, pages.pushed_metrics) {
            (Some(metrics), Some(config)) => Some(MetricsPush::start(metrics, config)?),
            _ => None,
        };
        let mut router = Router::new();
        if let Some(metrics) = metrics.filter(|_| pages.metrics) {
            router = router.merge(metrics.router());
        }
        if pages.console {
            router = router.merge(oip_console::router(log.config.tail.clone()));
        }
        let load = {
            let (engine, budget, totals) = (models.engine.clone(), http.budget.clone(), totals.clone());
            move || Load {
                memory: budget.used() as f64 / budget.limit().max(1) as f64,
                running: totals
                    .as_ref()
                    .map(|totals| totals.running(Transport::Http) + totals.running(Transport::Grpc)),
                waiting: engine.waiting(),
            }
        };
        let traffic = Arc::new(Traffic {
            totals,
            records,
            request_ids: RequestIds::new(),
            aliases: Aliases::new(models.only_model.as_deref(), &|name| env::var(name).ok()),
            load: Box::new(load),
        });
        Ok((Self { traffic, pushed }, router))
    }

    /// Flushes records and metrics. Takes at most a few seconds.
    pub(super) fn finish(&self) {
        self.traffic.records.finish();
        if let Some(pushed) = &self.pushed {
            pushed.finish(Duration::from_secs(1));
        }
    }
}
