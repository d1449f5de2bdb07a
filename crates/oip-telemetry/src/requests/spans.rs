//! Traces inference requests: decides which ones are sampled, and converts the recorded stages of a request
//! to spans.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Instant, SystemTime},
};

use super::{finished::FinishedExchange, transport::Transport};
use oip_resources::{Phase, RequestNotes, StageKind};

use crate::{
    ids::{Parent, SpanId, TraceId},
    sampler::Sampler,
    span::{Kind, Span},
};

/// Decides which requests are traced, and exports their spans. Clones share the exporter.
#[derive(Clone)]
pub struct Traces {
    sampler: Sampler,
    export: Arc<dyn Fn(Vec<Span>) + Send + Sync>,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Traces");
        shown.field("sampler", &self.sampler).finish_non_exhaustive()
    }
}

/// The trace context of a sampled request.
pub(super) struct TraceContext {
    trace: TraceId,
    parent: Option<SpanId>,
}

impl Traces {
    /// Creates the traces. `export` gets the spans of each traced request when it ends, and must not wait:
    /// usually it is `Exporter::export`.
    pub fn new(sampler: Sampler, export: impl Fn(Vec<Span>) + Send + Sync + 'static) -> Self {
        let export = Arc::new(export);
        Self { sampler, export }
    }

    /// Decides whether to trace a request, by its `traceparent` or by sampling.
    pub(super) fn decide(&self, parent: Option<&Parent>) -> Option<TraceContext> {
        let trace = self.sampler.decide(parent)?;
        Some(TraceContext {
            trace,
            parent: parent.map(|parent| parent.span),
        })
    }

    /// Exports the spans of a finished request.
    pub(super) fn export(&self, traced: &TraceContext, request: &FinishedExchange<'_>) {
        (self.export)(spans(traced, request));
    }
}

impl TraceContext {
    /// Returns the trace id as a string.
    pub(super) fn id(&self) -> String {
        self.trace.to_string()
    }
}

/// Returns a method, or OpenTelemetry's placeholder for an unknown one, which limits the number of span
/// names.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT",
    ];
    KNOWN
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("_OTHER")
}

/// Converts a time of the monotonic clock to wall-clock time.
fn at(request: &FinishedExchange<'_>, instant: Instant) -> SystemTime {
    match instant.checked_duration_since(request.facts.start) {
        Some(after) => request.facts.time + after,
        None => request.facts.time - request.facts.start.duration_since(instant),
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns the spans of a request: its own, and one for each stage.
fn spans(traced: &TraceContext, request: &FinishedExchange<'_>) -> Vec<Span> {
    let mut root = root(traced, request);
    let stages = request.facts.notes.stages();
    if stages.len() == RequestNotes::MOST_STAGES {
        root.attributes.push(("oip.stages", "more than are shown".into()));
    }
    // Spans of a step's stages are created before the span of the step, which ends later, so the ids of steps
    // are created first.
    let steps: HashMap<u32, SpanId> = stages
        .iter()
        .filter_map(|stage| match stage.kind {
            StageKind::Step { number, .. } => Some((number, SpanId::random())),
            _ => None,
        })
        .collect();
    let root_id = root.id;
    let mut spans = vec![root];
    for stage in stages {
        let (name, own_id) = match &stage.kind {
            StageKind::Phase(Phase::Read) => ("read", None),
            StageKind::Phase(Phase::Decode) => ("decode", None),
            StageKind::Phase(Phase::Queue) => ("queue", None),
            StageKind::Phase(Phase::Encode) => ("encode", None),
            StageKind::Batch => ("batch", None),
            StageKind::Run { .. } => ("run", None),
            StageKind::Split => ("split", None),
            StageKind::Step { number, .. } => ("step", steps.get(number).copied()),
            _ => continue,
        };
        let id = own_id.unwrap_or_else(SpanId::random);
        let (start, end) = (at(request, stage.start), at(request, stage.end));
        let mut span = Span::new(traced.trace, id, name, start, end);
        span.parent = Some(steps.get(&stage.step).copied().unwrap_or(root_id));
        match stage.kind {
            StageKind::Run { rows } => span.attributes.push(("oip.batch.rows", number(rows).into())),
            StageKind::Step { model, .. } => span.attributes.push(("oip.model.name", model.into())),
            _ => {}
        }
        spans.push(span);
    }
    spans
}

/// Returns the span of the whole request.
fn root(traced: &TraceContext, request: &FinishedExchange<'_>) -> Span {
    let method = known_method(request.facts.method.as_str());
    let name: Cow<'static, str> = match request.transport {
        Transport::Http => format!("{method} {}", request.route).into(),
        Transport::Grpc => request.route.into(),
    };
    let end = at(request, Instant::now());
    let mut root = Span::new(traced.trace, SpanId::random(), name, request.facts.time, end);
    root.parent = traced.parent;
    root.kind = Kind::Server;
    let code = i64::from(request.code);
    let is_failure = match request.transport {
        Transport::Http => {
            root.attributes.push(("http.request.method", method.into()));
            root.attributes.push(("http.route", request.route.into()));
            root.attributes.push(("http.response.status_code", code.into()));
            // 499, for disconnected clients, counts as a failure; other client errors do not.
            code >= 499
        }
        Transport::Grpc => {
            root.attributes.push(("rpc.system", "grpc".into()));
            root.attributes.push(("rpc.method", request.route.into()));
            root.attributes.push(("rpc.grpc.status_code", code.into()));
            // Cancelled, for disconnected clients, and the codes that OpenTelemetry lists as server errors:
            // unknown, deadline exceeded, unimplemented, internal, unavailable, data loss.
            [1, 2, 4, 12, 13, 14, 15].contains(&code)
        }
    };
    root.attributes
        .push(("http.request.body.size", number(request.bytes_in).into()));
    root.attributes
        .push(("http.response.body.size", number(request.bytes_out).into()));
    let notes = &request.facts.notes;
    for (name, value) in [
        (
            "client.address",
            request.facts.peer.map(|peer| peer.ip().to_string()),
        ),
        ("oip.model.name", notes.model().map(str::to_owned)),
        ("oip.model.version", notes.version().map(str::to_owned)),
        ("enduser.id", notes.identity().map(str::to_owned)),
        ("oip.request.id", request.facts.request_id.clone()),
    ] {
        root.attributes.extend(value.map(|value| (name, value.into())));
    }
    root.failure = is_failure.then(|| format!("code {code}"));
    root
}
