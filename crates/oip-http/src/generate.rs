//! Triton's generate extension: inference with plain JSON, for text models.
//!
//! Members of a request are inputs, if the model has an input of that name, and parameters otherwise. Members
//! of a response are outputs. The request is rewritten as a protocol request and decoded like one, so there
//! is one set of rules for tensors.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::Response,
};
use bytes::Bytes;
use http_body::Frame;
use oip_model::{CancelGuard, ResponseStream, Responses};
use oip_resources::{Charge, Lease, Phase, RequestNotes};
use oip_service::{RequestContext, route::Route};
use oip_types::{
    ErrorCode, InferResponse, ModelMetadata, ModelRef, ServiceError, TensorMetadata,
    rest::{BinaryOutputs, NonFinite, decode_request_with, encode_response, error_body, json_body},
};
use serde_json::{Map, Value, json};
use tensor_core::QuotedName;
use tokio::time::{Sleep, sleep_until};

use crate::{
    app::{App, RequestRoute},
    infer::{in_time, receive, run},
    leased::mark,
    response::{self, respond},
};

/// Maximum size in bytes of a request, and of a response's tensors. The limit is ample for text; `infer` has
/// no such limit.
const MAX_BYTES: usize = 1 << 20;

/// Maximum number of values in a response; the connection's thread encodes them as JSON.
const MAX_VALUES: u64 = 16 << 10;

/// Maximum memory per byte of JSON as a tree: each object with one member, such as `{"":1}`, takes a node of
/// about 600 bytes.
const DECODED: u64 = 96;

/// Handles `generate`: responds with one JSON object.
pub(crate) async fn generate(State(app): State<App>, route: RequestRoute, request: Request) -> Response {
    let answered = async {
        let started = start(&app, route.0, request).await?;
        let model = started.model.model()?;
        let answer = match started.answers {
            Responses::One(response) => show(&response, &started.lease, model)?,
            Responses::Several(answers) => {
                in_time(&started.lease, model, only(answers, &started.lease, model)).await?
            }
        };
        started.guard.disarm();
        Ok(mark(response::json(StatusCode::OK, answer)))
    };
    respond(answered.await)
}

/// Handles `generate_stream`: responds with server-sent events, one per response of the model.
pub(crate) async fn generate_stream(
    State(app): State<App>,
    route: RequestRoute,
    request: Request,
) -> Response {
    let answered = async {
        let started = start(&app, route.0, request).await?;
        let model = started.model.model()?;
        let body = match started.answers {
            Responses::One(response) => {
                let answer = show(&response, &started.lease, model)?;
                started.guard.disarm();
                Body::from(event(&answer, &started.lease)?)
            }
            Responses::Several(mut answers) => {
                // An error before the first response is sent with its own HTTP status.
                let first = in_time(&started.lease, model, async { answers.next().await.transpose() });
                let first = first.await?.map(|answer| {
                    let shown = show(&answer.response, &started.lease, model)?;
                    event(&shown, &started.lease)
                });
                let first = first.transpose()?;
                Body::new(Events {
                    answers: first.is_some().then_some(answers),
                    first,
                    deadline: started
                        .lease
                        .deadline()
                        .map(|end| Box::pin(sleep_until(end.into()))),
                    lease: started.lease,
                    guard: Some(started.guard),
                    model: started.model,
                    _overhead: started.overhead,
                })
            }
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        );
        // The header tells proxies not to buffer events.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Ok(mark(response))
    };
    respond(answered.await)
}

/// A request whose responses are being sent.
struct RunningRequest {
    answers: Responses,
    lease: Lease,
    /// Cancels all work when it is dropped because the client disconnected.
    guard: CancelGuard,
    model: Route,
    /// The charge for memory that the request uses in addition to its tensors.
    overhead: Charge,
}

async fn start(app: &App, route: Route, request: Request) -> Result<RunningRequest, ServiceError> {
    let model = route.model()?;
    app.service.model_ready(model)?;
    let lease = Lease::new(&app.config.budget, &app.config.time);
    let guard = lease.guard();
    let (head, body) = request.into_parts();
    if let Some(notes) = head.extensions.get::<Arc<RequestNotes>>() {
        notes.set_model(model.name());
        lease.set_notes(notes.clone());
    }
    let mut laps = lease.laps();
    let limit = app.config.max_body_bytes.min(MAX_BYTES);
    let decoded = async {
        let body = receive(app, &head.headers, body, limit, &lease).await?;
        laps.end(Phase::Read);
        let tree = lease.charge(body.len() as u64 * DECODED)?;
        let metadata = app.service.model_metadata(model)?;
        let bytes = body.len();
        let decoding = {
            let (app, route, lease) = (app.clone(), route.clone(), lease.clone());
            move || {
                let _tree = tree;
                let model = route.model()?;
                let shared = oip_types::NoSharedMemory;
                let decoded = rewrite(&body, &metadata).and_then(|body| {
                    decode_request_with(model, &body, None, &app.config.limits, &shared, &lease)
                });
                decoded.map_err(|error| error.within(model))
            }
        };
        let decoded = run(&app.config.cpu, &lease, bytes, decoding).await;
        laps.end(Phase::Decode);
        decoded
    };
    let request = in_time(&lease, model, decoded).await?.request;
    let overhead = lease.charge(request.overhead_bytes() as u64)?;
    let cx = RequestContext::for_request(&request, &lease, None, &app.config.time)?;
    let answers = oip_service::respond_stream(&app.service, &app.config.cpu, request, cx);
    let answers = in_time(&lease, model, answers).await?;
    Ok(RunningRequest {
        answers,
        lease,
        guard,
        model: route,
        overhead,
    })
}

/// Returns the response of a model that may send several, if it sends exactly one.
async fn only(
    mut answers: ResponseStream,
    lease: &Lease,
    model: ModelRef<'_>,
) -> Result<Bytes, ServiceError> {
    let not_one = |found: &str| {
        let message = format!("it returned {found}, and generate allows only one: use generate_stream");
        ServiceError::invalid(message).within(model)
    };
    let first = answers.next().await.transpose()?;
    let first = first.ok_or_else(|| not_one("no response"))?;
    if !first.is_last && answers.next().await.transpose()?.is_some() {
        return Err(not_one("more than one response"));
    }
    show(&first.response, lease, model)
}

/// Responses as server-sent events. Each event is produced when the client can receive it.
struct Events {
    first: Option<Bytes>,
    /// The model's responses; `None` after the last event.
    answers: Option<ResponseStream>,
    deadline: Option<Pin<Box<Sleep>>>,
    lease: Lease,
    guard: Option<CancelGuard>,
    model: Route,
    _overhead: Charge,
}

impl Events {
    /// Ends the stream, with an error event if there is an error.
    fn end(&mut self, error: Option<ServiceError>) -> Option<Bytes> {
        self.answers = None;
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
        let error = error?;
        if error.code() == ErrorCode::Internal {
            tracing::error!(error = error.report(), "a request failed");
        }
        // An error event does not count toward the budget: its message is short, and the budget may be
        // exhausted.
        Some(framed(&error_body(&error)).into())
    }

    fn shown(&self, response: &InferResponse) -> Result<Bytes, ServiceError> {
        event(&show(response, &self.lease, self.model.model()?)?, &self.lease)
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(answers) = &mut this.answers else {
            return Poll::Ready(None);
        };
        let event = match answers.poll_next(cx) {
            Poll::Ready(Some(Ok(answer))) => match this.shown(&answer.response) {
                Ok(event) => Some(event),
                Err(error) => this.end(Some(error)),
            },
            Poll::Ready(Some(Err(error))) => this.end(Some(error)),
            Poll::Ready(None) => this.end(None),
            Poll::Pending => {
                let Some(deadline) = &mut this.deadline else {
                    return Poll::Pending;
                };
                ready!(deadline.as_mut().poll(cx));
                let passed = ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed");
                let passed = match this.model.model() {
                    Ok(model) => passed.within(model),
                    Err(_) => passed,
                };
                this.end(Some(passed))
            }
        };
        Poll::Ready(event.map(|event| Ok(Frame::data(event))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.answers.is_none()
    }
}

/// Creates an event that counts toward its request's budget until it is sent.
fn event(json: &[u8], lease: &Lease) -> Result<Bytes, ServiceError> {
    let charge = lease.charge(json.len() as u64 + 8)?;
    Ok(charge.own(framed(json)))
}

/// Frames JSON without line breaks as one event.
fn framed(json: &[u8]) -> Vec<u8> {
    [b"data: ", json, b"\n\n"].concat()
}

/// Rewrites a request as a protocol request.
fn rewrite(body: &Bytes, metadata: &ModelMetadata) -> Result<Bytes, ServiceError> {
    let malformed = |what: &str| {
        ServiceError::invalid(format!(
            "expected an object of inputs and parameters such as {{\"text_input\": \"...\"}}, found {what}"
        ))
    };
    let fields = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err(malformed("other JSON")),
        Err(error) => return Err(malformed(&format!("invalid JSON: {error}"))),
    };
    let (mut inputs, mut parameters) = (Vec::new(), Map::new());
    let mut id = None;
    let mut place = |name: String, value: Value| -> Result<(), ServiceError> {
        if let Some(input) = metadata.inputs.iter().find(|input| input.name == name) {
            inputs.push(tensor(input, value)?);
            return Ok(());
        }
        if value.is_array() || value.is_object() || value.is_null() {
            let name = QuotedName(&name);
            return Err(ServiceError::invalid(format!(
                "{name} is not an input of the model, and a parameter must be a string, a number or a boolean"
            )));
        }
        parameters.insert(name, value);
        Ok(())
    };
    for (name, value) in fields {
        match value {
            Value::String(value) if name == "id" => id = Some(value),
            Value::Object(inner) if name == "parameters" => {
                inner
                    .into_iter()
                    .try_for_each(|(name, value)| place(name, value))?;
            }
            Value::Null if name == "parameters" => {}
            value => place(name, value)?,
        }
    }
    Ok(json_body(
        &json!({ "id": id, "parameters": parameters, "inputs": inputs }),
    ))
}

/// Converts a value or a list to an input tensor: the last dimension is the list's length, all other
/// dimensions are one.
fn tensor(input: &TensorMetadata, value: Value) -> Result<Value, ServiceError> {
    let data = match value {
        Value::Array(values) => values,
        value => vec![value],
    };
    if data
        .iter()
        .any(|value| value.is_array() || value.is_object() || value.is_null())
    {
        return Err(ServiceError::invalid(format!(
            "input {}: expected a value, or a list of values",
            QuotedName(&input.name)
        )));
    }
    let mut shape = vec![1; input.shape.dims().len()];
    if let Some(last) = shape.last_mut() {
        *last = data.len();
    }
    Ok(json!({ "name": input.name, "datatype": input.datatype.name(), "shape": shape, "data": data }))
}

/// Encodes a response for this extension: a tensor of one element becomes a value, a tensor of several
/// elements becomes a list.
fn show(response: &InferResponse, lease: &Lease, model: ModelRef<'_>) -> Result<Bytes, ServiceError> {
    lease.note_version(response.model_version.as_deref());
    let outputs = response.outputs.iter();
    let tensors: usize = outputs.map(|output| output.value.raw().len()).sum();
    if tensors > MAX_BYTES {
        return Err(ServiceError::internal(format!(
            "its outputs have {tensors} bytes, more than the {MAX_BYTES} of a response to generate; infer \
             has no such limit"
        ))
        .within(model));
    }
    let values = response
        .outputs
        .iter()
        .map(|output| output.value.shape().element_count());
    let values = values.fold(0, u64::saturating_add);
    if values > MAX_VALUES {
        return Err(ServiceError::internal(format!(
            "its outputs have {values} values, more than the {MAX_VALUES} of a response to generate; infer \
             has no such limit"
        ))
        .within(model));
    }
    let _tree = lease.charge(tensors as u64 * DECODED)?;
    let shown = tree(response).map_err(|error| error.within(model))?;
    Ok(json_body(&shown))
}

fn tree(response: &InferResponse) -> Result<Value, ServiceError> {
    let encoded = encode_response(response, &BinaryOutputs::all(false), NonFinite::Null)?;
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(&encoded.json) else {
        return Err(ServiceError::internal("the response could not be written"));
    };
    let outputs = answer.remove("outputs");
    answer.remove("parameters");
    for output in outputs.as_ref().and_then(Value::as_array).into_iter().flatten() {
        let (Some(name), Some(data)) = (output["name"].as_str(), output["data"].as_array()) else {
            continue;
        };
        let shown = match &data[..] {
            [only] => only.clone(),
            data => data.into(),
        };
        answer.insert(name.to_owned(), shown);
    }
    Ok(answer.into())
}
