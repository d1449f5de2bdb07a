//! Observability: metrics, the console, and the records of each request.

use std::{env, sync::Arc};

use axum::Router;
use oip_http::HttpConfig;
use oip_service::route::Aliases;
use oip_telemetry::requests::{Load, Traffic, Transport};

use super::models::Models;
use crate::{
    failure::Failure,
    metrics::{Counts, Metrics},
    options::PageConfig,
    records::Records,
    telemetry::Log,
};

/// The observability of a running server.
pub(super) struct Observability {
    /// The settings for observing requests.
    pub(super) traffic: Arc<Traffic>,
    records: Records,
    /// Keeps the metrics alive while they are pushed.
    _metrics: Option<Arc<Metrics>>,
}

impl Observability {
    /// Starts counting and observing requests. Also returns the pages that are served next to the protocol's
    /// paths.
    pub(super) fn start(
        models: &Models,
        http: &HttpConfig,
        counts: Counts,
        pages: &PageConfig,
        log: &Log,
    ) -> Result<(Self, Router), Failure> {
        let records = counts.records.clone();
        let is_counted = pages.metrics || records.exports.pushes_metrics();
        let totals = is_counted.then(|| counts.totals.clone());
        let metrics = is_counted.then(|| Arc::new(Metrics::new(models.engine.clone(), http, counts)));
        let mut router = Router::new();
        if let Some(metrics) = &metrics {
            // The exporter is one of the sources of the metrics, so it must not own them.
            let pushed = Arc::downgrade(metrics);
            records.exports.push(move |families| {
                if let Some(metrics) = pushed.upgrade() {
                    metrics.write(families);
                }
            })?;
            if pages.metrics {
                router = router.merge(metrics.clone().router());
            }
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
        let traffic = Traffic::default().with(|traffic| {
            traffic.totals = totals;
            traffic.access_log.clone_from(&records.access_log);
            traffic.traces.clone_from(&records.traces);
            traffic.aliases = Aliases::new(models.only_model.as_deref(), &|name| env::var(name).ok());
            traffic.load = Some(Box::new(load));
        });
        let observability = Self {
            traffic: Arc::new(traffic),
            records,
            _metrics: metrics,
        };
        Ok((observability, router))
    }

    /// Flushes records and metrics. Takes at most a few seconds.
    pub(super) fn finish(&self) {
        self.records.finish();
    }
}
