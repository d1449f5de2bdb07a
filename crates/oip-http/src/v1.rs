//! The V1 protocol, which is KServe's default. `docs/oip.md` describes the responses.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use bytes::Bytes;
use oip_resources::{Lease, Phase, RequestNotes};
use oip_service::{RequestContext, route::Route};
use oip_types::{
    InferResponse, ModelRef, ServiceError, TensorValue,
    rest::{DecodedV1Request, decode_v1_request, encode_v1_response, json_body},
};
use serde_json::json;

use crate::{
    app::{App, RequestRoute},
    infer::{in_time, receive, run},
    leased::mark,
    response::{self, EncodedResponse, respond},
};

/// Returns whether a model is ready.
pub(crate) async fn model_ready(State(app): State<App>, route: RequestRoute) -> Response {
    let ready = route.model().and_then(|model| {
        app.service.model_ready(model)?;
        // OpenAI's clients use the last four members.
        let body = json!({
            "name": model.name(), "ready": true,
            "id": model.name(), "object": "model", "created": 0, "owned_by": "server",
        });
        Ok(response::json(StatusCode::OK, json_body(&body)))
    });
    respond(ready)
}

/// Runs a model, like `infer` in V2.
pub(crate) async fn predict(State(app): State<App>, route: RequestRoute, request: Request) -> Response {
    respond(predicted(&app, &route, request).await)
}

async fn predicted(app: &App, route: &Route, request: Request) -> Result<Response, ServiceError> {
    let model = route.model()?;
    app.service.model_ready(model)?;
    let lease = Lease::new(&app.config.budget, &app.config.time);
    // Dropping this future when the client disconnects cancels all work.
    let guard = lease.guard();
    let (head, body) = request.into_parts();
    if let Some(notes) = head.extensions.get::<Arc<RequestNotes>>() {
        notes.set_model(model.name());
        lease.set_notes(notes.clone());
    }
    let mut laps = lease.laps();
    let decoded = async {
        let body = receive(app, &head.headers, body, app.config.max_body_bytes, &lease).await?;
        laps.end(Phase::Read);
        let decoded = decode(app, model, body, &lease).await;
        laps.end(Phase::Decode);
        decoded.map_err(|error| error.within(model))
    };
    let DecodedV1Request {
        request, has_rows, ..
    } = in_time(&lease, model, decoded).await?;
    let overhead = lease.charge(request.overhead_bytes() as u64)?;
    let cx = RequestContext::for_request(&request, &lease, None, &app.config.time)?;
    let answered = async {
        let mut response = oip_service::respond(&app.service, &app.config.cpu, request, cx).await?;
        response.id.get_or_insert_with(|| app.request_ids.next_id());
        drop(overhead);
        lease.note_version(response.model_version.as_deref());
        laps.skip();
        let encoded = encode(app, response, has_rows, &lease).await;
        laps.end(Phase::Encode);
        encoded.map_err(|error| error.within(model))
    };
    let encoded = in_time(&lease, model, answered).await?;
    guard.disarm();
    Ok(mark(response::inference(encoded)))
}

/// Decodes a request, off the reactor thread if decoding takes a long time.
async fn decode(
    app: &App,
    model: ModelRef<'_>,
    body: Bytes,
    lease: &Lease,
) -> Result<DecodedV1Request, ServiceError> {
    let bytes = body.len();
    let decoding = {
        let (app, lease) = (app.clone(), lease.clone());
        let (name, version) = (model.name().to_owned(), model.version().map(str::to_owned));
        move || {
            let model = ModelRef::new(&name, version.as_deref())?;
            let metadata = app.service.model_metadata(model)?;
            decode_v1_request(model, &metadata, &body, &app.config.limits, &lease)
        }
    };
    run(&app.config.cpu, lease, bytes, decoding).await
}

/// Estimates the work of encoding a tensor as nested lists, in bytes; empty lists also count.
fn printing(value: &TensorValue) -> usize {
    const LIST: u64 = 16;
    let mut lists = 0u64;
    let mut of_level = 1u64;
    for &dim in value.shape().dims() {
        lists = lists.saturating_add(of_level);
        of_level = of_level.saturating_mul(dim);
    }
    let lists = usize::try_from(lists.saturating_mul(LIST)).unwrap_or(usize::MAX);
    value.raw().len().saturating_add(lists)
}

/// Encodes a response, off the reactor thread if encoding takes a long time.
async fn encode(
    app: &App,
    response: InferResponse,
    has_rows: bool,
    lease: &Lease,
) -> Result<EncodedResponse, ServiceError> {
    let config = &app.config;
    let bytes = response.outputs.iter().map(|output| printing(&output.value));
    let bytes = bytes.fold(0, usize::saturating_add);
    let encoding = {
        let (non_finite, limit, lease) = (config.non_finite, config.max_answer_bytes, lease.clone());
        move || encode_v1_response(&response, has_rows, non_finite, &lease, limit)
    };
    run(&config.cpu, lease, bytes, encoding)
        .await
        .map(EncodedResponse::plain)
}
