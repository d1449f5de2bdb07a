//! Traces inference requests: decides which ones are sampled, and converts their notes to spans.

use std::{
    borrow::Cow,
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use oip_service::{Phase, RequestNotes, StageKind};
use oip_telemetry::{Exporter, Kind, Parent, Sampler, Span, SpanId, TraceId};

use super::transport::Transport;

/// Decides which requests are traced, and exports them.
pub(crate) struct Traces {
    pub(crate) sampler: Sampler,
    pub(crate) exporter: Exporter,
}

/// A traced request.
pub(super) struct TraceContext {
    trace: TraceId,
    parent: Option<SpanId>,
}

/// The outcome of a finished request.
pub(super) struct Outcome<'a> {
    pub(super) transport: Transport,
    pub(super) method: &'a str,
    pub(super) route: &'static str,
    pub(super) code: u16,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) peer: Option<SocketAddr>,
    pub(super) request_id: Option<&'a str>,
    pub(super) notes: &'a RequestNotes,
    /// The start of the request; `start` is the same moment on the monotonic clock.
    pub(super) time: SystemTime,
    pub(super) start: Instant,
}

impl Traces {
    /// Decides whether to trace a request, by its `traceparent` or by sampling.
    pub(super) fn decide(&self, trace_parent: Option<&str>) -> Option<TraceContext> {
        let parent = trace_parent.and_then(Parent::parse);
        let trace = self.sampler.decide(parent.as_ref())?;
        Some(TraceContext {
            trace,
            parent: parent.map(|parent| parent.span),
        })
    }

    /// Sends the queued spans, for at most `patience`.
    pub(super) fn finish(&self, patience: Duration) {
        self.exporter.finish(patience);
    }

    /// Exports the spans of a finished request.
    pub(super) fn export(&self, traced: &TraceContext, outcome: &Outcome<'_>) {
        self.exporter.export(spans(traced, outcome));
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

fn spans(traced: &TraceContext, outcome: &Outcome<'_>) -> Vec<Span> {
    let at = |instant: Instant| match instant.checked_duration_since(outcome.start) {
        Some(after) => outcome.time + after,
        None => outcome.time - outcome.start.duration_since(instant),
    };
    let method = known_method(outcome.method);
    let name: Cow<'static, str> = match outcome.transport {
        Transport::Http => format!("{method} {}", outcome.route).into(),
        Transport::Grpc => outcome.route.into(),
    };
    let end = at(Instant::now());
    let mut root = Span::new(traced.trace, SpanId::random(), name, outcome.time, end);
    root.parent = traced.parent;
    root.kind = Kind::Server;
    let code = i64::from(outcome.code);
    let is_failure = match outcome.transport {
        Transport::Http => {
            root.attributes.push(("http.request.method", method.into()));
            root.attributes.push(("http.route", outcome.route.into()));
            root.attributes.push(("http.response.status_code", code.into()));
            // Disconnected clients count as failures; errors of the client do not.
            code >= 499
        }
        Transport::Grpc => {
            root.attributes.push(("rpc.system", "grpc".into()));
            root.attributes.push(("rpc.method", outcome.route.into()));
            root.attributes.push(("rpc.grpc.status_code", code.into()));
            // The codes that OpenTelemetry lists as server errors: unknown, deadline exceeded, unimplemented,
            // internal, unavailable, data loss.
            [1, 2, 4, 12, 13, 14, 15].contains(&code)
        }
    };
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    root.attributes
        .push(("http.request.body.size", number(outcome.bytes_in).into()));
    root.attributes
        .push(("http.response.body.size", number(outcome.bytes_out).into()));
    let notes = outcome.notes;
    for (name, value) in [
        ("client.address", outcome.peer.map(|peer| peer.ip().to_string())),
        ("oip.model.name", notes.model().map(str::to_owned)),
        ("oip.model.version", notes.version().map(str::to_owned)),
        ("enduser.id", notes.identity().map(str::to_owned)),
        ("oip.request.id", outcome.request_id.map(str::to_owned)),
    ] {
        root.attributes.extend(value.map(|value| (name, value.into())));
    }
    root.failure = is_failure.then(|| format!("code {code}"));

    let stages = notes.stages();
    if stages.len() == RequestNotes::MOST_STAGES {
        root.attributes.push(("oip.stages", "more than are shown".into()));
    }
    // Spans of a step's stages are created before the span of the step, which ends later, so the ids of steps
    // are created first.
    let steps: Vec<(u32, SpanId)> = stages
        .iter()
        .filter_map(|stage| match stage.kind {
            StageKind::Step { number, .. } => Some((number, SpanId::random())),
            _ => None,
        })
        .collect();
    let id_of = |step: u32| {
        steps
            .iter()
            .find(|(number, _)| *number == step)
            .map(|(_, id)| *id)
    };
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
            StageKind::Step { number, .. } => ("step", id_of(*number)),
            _ => continue,
        };
        let id = own_id.unwrap_or_else(SpanId::random);
        let mut span = Span::new(traced.trace, id, name, at(stage.start), at(stage.end));
        span.parent = Some(id_of(stage.step).unwrap_or(root_id));
        match stage.kind {
            StageKind::Run { rows } => span.attributes.push(("oip.batch.rows", number(rows).into())),
            StageKind::Step { model, .. } => span.attributes.push(("oip.model.name", model.into())),
            _ => {}
        }
        spans.push(span);
    }
    spans
}
