//! `GET /metrics`: how the server is and what it has done, in Prometheus' text format. `docs/metrics.md` lists all of it.

mod models;
#[cfg(target_os = "linux")]
mod process;
mod text;

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use oip_engine::Engine;
use oip_service::{ByteBudget, InferenceService};
use tokio::task::spawn_blocking;

#[cfg(target_os = "linux")]
use self::process::Process;
use self::text::{Family, Text};

/// All that metrics are about. Its text grows with the versions in the repository, and with nothing that clients send.
pub(crate) struct Metrics {
    engine: Arc<Engine>,
    /// Of bodies in work, over both transports.
    budget: ByteBudget,
    #[cfg(target_os = "linux")]
    process: Process,
}

impl Metrics {
    pub(crate) fn new(engine: Arc<Engine>, budget: ByteBudget) -> Self {
        Self {
            engine,
            budget,
            #[cfg(target_os = "linux")]
            process: Process::new(),
        }
    }

    /// The endpoint, with and without a slash at its end, as the protocol's.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/metrics", get(scrape))
            .route("/metrics/", get(scrape))
            .with_state(Arc::new(self))
    }

    fn text(&self) -> String {
        let mut text = Text::default();
        models::write_metrics(&mut text, &self.engine.metrics());
        models::write_states(&mut text, &self.engine.models());
        text.family(&SERVER_READY)
            .add(&[], self.engine.readiness().is_ready());
        text.family(&BUDGET_USED).add(&[], self.budget.used());
        text.family(&BUDGET).add(&[], self.budget.limit());
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        text.family(&BUILD).add(&version, 1);
        #[cfg(target_os = "linux")]
        self.process.write(&mut text);
        text.into_string()
    }
}

/// With many models the text takes milliseconds, in which the thread could answer others.
async fn scrape(State(metrics): State<Arc<Metrics>>) -> Response {
    match spawn_blocking(move || metrics.text()).await {
        Ok(text) => (
            [(CONTENT_TYPE, HeaderValue::from_static(text::CONTENT_TYPE))],
            text,
        )
            .into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be shown");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                [(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
                r#"{"error":"metrics cannot be shown"}"#,
            )
                .into_response()
        }
    }
}

const SERVER_READY: Family = Family::gauge(
    "oip_server_ready",
    "Whether the server says that it is ready: 1 or 0.",
);

const BUDGET_USED: Family = Family::gauge(
    "oip_memory_budget_used_bytes",
    "Bytes of requests in work, over both transports, and of rows of tensor files on their way.",
);

const BUDGET: Family = Family::gauge(
    "oip_memory_budget_bytes",
    "Bytes that may be in work at once, by --memory-budget; beyond it requests are refused.",
);

const BUILD: Family = Family::gauge("oip_build_info", "The version of this server; always 1.");
