//! Serves metrics at `GET /metrics` in Prometheus' text format, and pushes them to an OpenTelemetry
//! collector. `docs/metrics.md` lists all metrics.

mod connections;
mod families;
#[cfg(feature = "gpu")]
mod gpus;
mod models;
#[cfg(target_os = "linux")]
mod process;
#[cfg(feature = "otlp")]
mod push;
mod text;
mod traffic;

use std::sync::Arc;
#[cfg(feature = "otlp")]
use std::sync::OnceLock;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use oip_auth::Guard;
use oip_capture::Recorder;
use oip_engine::Engine;
use oip_http::{HttpConfig, error_response, leased};
use oip_service::{ByteBudget, CpuPool, InferenceService, Lease, TimeLimits};

pub(crate) use self::connections::ConnectionCaps;
#[cfg(target_os = "linux")]
use self::process::Process;
use self::{
    families::{Families, Family},
    text::Text,
};
use crate::{
    log_writer::DropCounters,
    traffic::{AccessLog, Records, Totals},
};

/// Counters of all components except the engine.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) dropped: Arc<DropCounters>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) caps: ConnectionCaps,
    pub(crate) records: Records,
    pub(crate) guard: Guard,
}

/// Memory reserved for metrics pages in addition to the request budget, in bytes.
const RESERVE: u64 = 4 << 20;

/// The sources of all metrics. The page's size depends on the versions in the repository, not on the requests
/// of clients.
pub(crate) struct Metrics {
    engine: Arc<Engine>,
    /// The request memory budget of both transports.
    budget: ByteBudget,
    /// Memory for the page when the request budget is exhausted, because operators need the metrics most
    /// while the server is overloaded.
    reserve: ByteBudget,
    /// The thread pool that renders the page.
    cpu: CpuPool,
    counts: Counts,
    /// Pushes the metrics to a collector.
    #[cfg(feature = "otlp")]
    pusher: OnceLock<oip_telemetry::MetricsExporter>,
    #[cfg(target_os = "linux")]
    process: Process,
}

impl Metrics {
    /// Creates the metrics. Pages are rendered with the memory budget and the thread pool of `http`.
    pub(crate) fn new(engine: Arc<Engine>, http: &HttpConfig, counts: Counts) -> Self {
        Self {
            engine,
            budget: http.budget.clone(),
            reserve: ByteBudget::new(RESERVE),
            cpu: http.cpu.clone(),
            counts,
            #[cfg(feature = "otlp")]
            pusher: OnceLock::new(),
            #[cfg(target_os = "linux")]
            process: Process::new(),
        }
    }

    /// Returns the endpoint, with and without a trailing slash, like the protocol's endpoints.
    pub(crate) fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/metrics", get(scrape))
            .route("/metrics/", get(scrape))
            .with_state(self)
    }

    /// Starts pushing metrics to a collector.
    #[cfg(feature = "otlp")]
    pub(crate) fn push(
        self: &Arc<Self>,
        config: oip_telemetry::MetricsConfig,
    ) -> std::io::Result<oip_telemetry::MetricsExporter> {
        let metrics = Arc::downgrade(self);
        let collect = move || {
            let mut collected = push::CollectedFamilies::default();
            if let Some(metrics) = metrics.upgrade() {
                metrics.write(&mut Families::new(&mut collected));
            }
            collected.into_families()
        };
        let pusher = oip_telemetry::MetricsExporter::start(config, collect)?;
        Ok(self.pusher.get_or_init(|| pusher).clone())
    }

    fn text(&self) -> String {
        let mut text = Text::default();
        self.write(&mut Families::new(&mut text));
        text.into_string()
    }

    fn write(&self, text: &mut Families<'_>) {
        models::write_metrics(text, &self.engine.metrics());
        models::write_states(text, &self.engine.models());
        #[cfg(feature = "gpu")]
        gpus::write(text, &crate::gpus::cards());
        text.single(&SERVER_READY, self.engine.readiness().is_ready());
        text.single(&BUDGET_USED, self.budget.used());
        text.single(&BUDGET, self.budget.limit());
        traffic::write(text, &self.counts.totals);
        connections::write(text, &self.counts.caps);
        #[cfg(feature = "count-allocations")]
        {
            let (allocations, bytes) = caching_allocator::CountingAllocator::counted();
            text.single(&ALLOCATIONS, allocations);
            text.single(&ALLOCATED, bytes);
        }
        self.write_counts(text);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        text.family(&BUILD).add(&version, 1);
        #[cfg(target_os = "linux")]
        self.process.write(text);
    }

    /// Writes the counters that belong neither to the engine nor to a transport.
    fn write_counts(&self, text: &mut Families<'_>) {
        let records = &self.counts.records;
        let (access_log, recorder) = (records.access_log.as_ref(), records.recorder.as_ref());
        text.single(&LOG_DROPPED, self.counts.dropped.count());
        text.single(&ACCESS_LOG_DROPPED, access_log.map_or(0, AccessLog::dropped));
        text.single(&CAPTURED, recorder.map_or(0, Recorder::recorded));
        text.single(&NOT_CAPTURED, recorder.map_or(0, Recorder::dropped));
        let fetches = self.counts.guard.key_fetches();
        text.single(&KEY_FETCHES, fetches.map_or(0, |fetches| fetches.succeeded));
        text.single(&FAILED_KEY_FETCHES, fetches.map_or(0, |fetches| fetches.failed));
        #[cfg(feature = "otlp")]
        {
            use oip_telemetry::MetricsExporter;
            let (exporter, pusher) = (records.traces.as_ref(), self.pusher.get());
            text.single(&SPANS_SENT, exporter.map_or(0, |traces| traces.exporter.sent()));
            text.single(
                &SPANS_DROPPED,
                exporter.map_or(0, |traces| traces.exporter.dropped()),
            );
            text.single(&PUSHES, pusher.map_or(0, MetricsExporter::sent));
            text.single(&FAILED_PUSHES, pusher.map_or(0, MetricsExporter::failed));
        }
    }
}

/// Renders the page on the pool, because rendering takes milliseconds with many models. If the client
/// disconnects first, nothing is rendered.
async fn scrape(State(metrics): State<Arc<Metrics>>) -> Response {
    /// Estimated cost for the pool's queue: a small job.
    const BYTES: u64 = 64 << 10;
    let lease = Lease::new(&metrics.budget, &TimeLimits::default());
    let (cpu, written) = (metrics.cpu.clone(), lease.clone());
    let write = move || {
        let text = Bytes::from(metrics.text());
        let response = || {
            let content_type = HeaderValue::from_static(text::CONTENT_TYPE);
            ([(CONTENT_TYPE, content_type)], text.clone()).into_response()
        };
        leased(response(), &written).or_else(|_| {
            let reserve = Lease::new(&metrics.reserve, &TimeLimits::default());
            leased(response(), &reserve)
        })
    };
    let response = cpu.run(&lease, BYTES, write).await;
    response.unwrap_or_else(|error| error_response(&error))
}

const SERVER_READY: Family = Family::gauge("oip_server_ready", "Whether the server is ready: 1 or 0.");

const BUDGET_USED: Family = Family::gauge(
    "oip_memory_budget_used_bytes",
    "Bytes of running requests over both transports, and of rows of tensor files that are being sent.",
);

const BUDGET: Family = Family::gauge(
    "oip_memory_budget_bytes",
    "Limit of these bytes (--memory-budget); beyond it requests are refused.",
);

#[cfg(feature = "count-allocations")]
const ALLOCATIONS: Family = Family::counter(
    "oip_allocations_total",
    "Allocations of memory since the start, in a build that counts them.",
);

#[cfg(feature = "count-allocations")]
const ALLOCATED: Family = Family::counter(
    "oip_allocated_bytes_total",
    "Bytes of all allocations since the start, in a build that counts them.",
);

const LOG_DROPPED: Family = Family::counter(
    "oip_log_lines_dropped_total",
    "Log lines that were dropped because standard error was not read in time.",
);

const ACCESS_LOG_DROPPED: Family = Family::counter(
    "oip_access_log_lines_dropped_total",
    "Lines of the access log that were dropped because the queue was full or the file could not be written.",
);

const CAPTURED: Family = Family::counter(
    "oip_captured_requests_total",
    "Requests that were recorded with their responses.",
);

const NOT_CAPTURED: Family = Family::counter(
    "oip_capture_dropped_total",
    "Requests that were not recorded because the queue was full or the file could not be written.",
);

const KEY_FETCHES: Family = Family::counter(
    "oip_auth_key_fetches_total",
    "How often keys of JSON Web Tokens were fetched from their URL.",
);

const FAILED_KEY_FETCHES: Family = Family::counter(
    "oip_auth_key_fetch_failures_total",
    "How often keys of JSON Web Tokens could not be fetched; the known keys stay in use.",
);

#[cfg(feature = "otlp")]
const PUSHES: Family = Family::counter(
    "oip_metric_pushes_total",
    "How often these metrics were pushed to a collector.",
);

#[cfg(feature = "otlp")]
const FAILED_PUSHES: Family = Family::counter(
    "oip_metric_push_failures_total",
    "How often a collector rejected these metrics.",
);

#[cfg(feature = "otlp")]
const SPANS_SENT: Family = Family::counter(
    "oip_trace_spans_sent_total",
    "Trace spans that the collector accepted.",
);

#[cfg(feature = "otlp")]
const SPANS_DROPPED: Family = Family::counter(
    "oip_trace_spans_dropped_total",
    "Trace spans that were dropped because the queue was full or the collector rejected them.",
);

const BUILD: Family = Family::gauge("oip_build_info", "The version of this server; always 1.");

#[cfg(feature = "tensors")]
#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use axum::{
        body::Body,
        http::{Request, StatusCode},
    };
    use backend_tensors::TensorsBackend;
    use http_body_util::BodyExt;
    use oip_engine::{EngineConfig, ModelControl, Repository};
    use oip_http::router_with;
    use tower::ServiceExt;

    use super::*;

    /// Returns a server without sockets, and its repository with one tensor file as a model.
    fn server() -> (Router, tempfile::TempDir) {
        let (server, _, folder) = server_with(HttpConfig::default().budget);
        (server, folder)
    }

    fn server_with(budget: ByteBudget) -> (Router, ByteBudget, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let version = folder.path().join("digit_means/1");
        fs::create_dir_all(&version).unwrap();
        let example =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors");
        fs::copy(example, version.join("model.safetensors")).unwrap();
        let repository = Repository::open(folder.path(), &[Arc::new(TensorsBackend::new())], None).unwrap();
        let load = vec!["*".to_owned()];
        let config = EngineConfig::default().with(|config| {
            config.control = ModelControl::Explicit { load };
        });
        let engine = Arc::new(Engine::start(repository, config));
        engine.wait_until_loaded();
        assert!(engine.readiness().is_ready());
        let config = HttpConfig::default().with(|config| config.budget = budget.clone());
        let metrics = Metrics::new(engine.clone(), &config, Counts::default());
        let metrics = Arc::new(metrics).router();
        (router_with(engine, config, metrics), budget, folder)
    }

    async fn call(server: &Router, method: &str, path: &str) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path).header("host", "x");
        let response = server
            .clone()
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Returns all samples without their values, which vary with memory and time.
    async fn series(server: &Router) -> Vec<String> {
        let (status, text) = call(server, "GET", "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|sample| sample.rsplit_once(' ').unwrap().0.to_owned())
            .collect()
    }

    /// A response counts toward the budget until the client reads it.
    #[tokio::test]
    async fn metrics_count_until_they_are_sent() {
        let (server, budget, _repository) = server_with(ByteBudget::new(1 << 20));
        let ask = || {
            let request = Request::get("/metrics").header("host", "x");
            server.clone().oneshot(request.body(Body::empty()).unwrap())
        };
        let mut unread = vec![ask().await.unwrap()];
        let length = budget.used();
        assert!(length > 1 << 10, "{length}");
        let refused = loop {
            let response = ask().await.unwrap();
            if response.status() != StatusCode::OK {
                break response;
            }
            unread.push(response);
        };
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(budget.used() > (1 << 20) - 2 * length);
        assert!(
            unread.len() as u64 > (5 << 20) / (2 * length),
            "they have a reserve of their own beyond the requests' budget"
        );
        drop((refused, unread));
        assert_eq!(budget.used(), 0);
    }

    /// Checks that 100,000 requests with unknown names and versions add no series to the metrics.
    #[tokio::test]
    async fn names_that_clients_make_up_are_not_shown() {
        let (server, _repository) = server();
        let before = series(&server).await;
        assert!(before.contains(&r#"nv_inference_count{model="digit_means",version="1"}"#.to_owned()));
        for index in 0..100_000 {
            let (method, path) = match index % 5 {
                0 => ("POST", format!("/v2/models/m{index}/infer")),
                1 => ("POST", format!("/v2/models/digit_means/versions/v{index}/infer")),
                2 => ("GET", format!("/v2/models/m{index}/stats")),
                3 => ("GET", format!("/v2/models/m{index}/ready")),
                _ => ("POST", format!("/v2/repository/models/m{index}/load")),
            };
            let (status, answer) = call(&server, method, &path).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {answer}");
        }
        assert_eq!(series(&server).await, before);
    }
}
