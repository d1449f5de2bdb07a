//! Triton's generate extension: inference with plain JSON, for models of text.
//!
//! A request's members are inputs by their names, or else parameters; an answer's are outputs. The request is rewritten as one
//! of the protocol and read as such, so that there is one set of rules for tensors.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::Response,
};
use bytes::Bytes;
use oip_service::{Lease, RequestContext, answer as answer_request};
use oip_types::{
    InferResponse, ModelMetadata, ModelRef, ServiceError, TensorMetadata,
    rest::{BinaryOutputs, NonFinite, decode_request_with, encode_response, json_body},
};
use serde_json::{Map, Value, json};
use tensor_core::Quoted;

use crate::{
    answer::{self, respond},
    app::App,
    infer::{in_time, receive},
    path::{PathParams, with_model},
};

/// Bytes of a request, and of an answer's tensors. More than a text needs; the rest of the protocol has no such limit.
const MAX_BYTES: usize = 1 << 20;

/// Bytes that a byte of JSON can become as a tree.
const DECODED: u64 = 48;

/// One answer, as JSON.
pub(crate) async fn generate(State(app): State<App>, path: PathParams, request: Request) -> Response {
    let answered = run(&app, path, request).await;
    respond(answered.map(|answer| answer::json(StatusCode::OK, json_body(&answer))))
}

/// The same as server-sent events. Models here answer once, so there is one.
pub(crate) async fn generate_stream(State(app): State<App>, path: PathParams, request: Request) -> Response {
    let answered = run(&app, path, request).await;
    respond(answered.map(|answer| {
        let mut response = Response::new(Body::from(format!("data: {answer}\n\n")));
        let events = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, events);
        response
    }))
}

async fn run(app: &App, path: PathParams, request: Request) -> Result<Value, ServiceError> {
    let (name, version) = with_model(path, |model| {
        Ok((model.name().to_owned(), model.version().map(str::to_owned)))
    })?;
    let model = ModelRef::new(&name, version.as_deref())?;
    app.service.model_ready(model)?;
    let lease = Lease::new(&app.config.budget, &app.config.time);
    // When the client leaves, this future is dropped: then all work for it ends.
    let guard = lease.guard();
    let (head, body) = request.into_parts();
    let limit = app.config.max_body_bytes.min(MAX_BYTES);
    let decoded = async {
        let body = receive(app, &head.headers, body, limit, &lease).await?;
        let _tree = lease.charge(body.len() as u64 * DECODED)?;
        let metadata = app.service.model_metadata(model)?;
        let body = rewrite(&body, &metadata).map_err(|error| error.within(model))?;
        let shared = oip_types::NoSharedMemory;
        let decoded = decode_request_with(model, &body, None, &app.config.limits, &shared, &lease);
        decoded.map_err(|error| error.within(model))
    };
    let request = in_time(&lease, model, decoded).await?.request;
    let overhead = lease.charge(request.overhead_bytes() as u64)?;
    let cx = RequestContext::for_request(&request, &lease, None, &app.config.time)?;
    let answered = async {
        let response = answer_request(&app.service, &app.config.cpu, request, cx).await?;
        drop(overhead);
        let tensors: usize = response
            .outputs
            .iter()
            .map(|output| output.value.raw().len())
            .sum();
        if tensors > MAX_BYTES {
            return Err(ServiceError::internal(format!(
                "its outputs have {tensors} bytes, more than the {MAX_BYTES} of an answer to generate; infer has no such limit"
            ))
            .within(model));
        }
        let _tree = lease.charge(tensors as u64 * DECODED)?;
        show(&response).map_err(|error| error.within(model))
    };
    let answer = in_time(&lease, model, answered).await?;
    guard.disarm();
    Ok(answer)
}

/// A request of the protocol that asks the same.
fn rewrite(body: &Bytes, metadata: &ModelMetadata) -> Result<Bytes, ServiceError> {
    let malformed = |what: &str| {
        ServiceError::invalid(format!(
            "expected an object of inputs and parameters such as {{\"text_input\": \"...\"}}, found {what}"
        ))
    };
    let fields = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err(malformed("other JSON")),
        Err(error) => return Err(malformed(&format!("no JSON: {error}"))),
    };
    let (mut inputs, mut parameters) = (Vec::new(), Map::new());
    let mut id = None;
    let mut place = |name: String, value: Value| -> Result<(), ServiceError> {
        if let Some(input) = metadata.inputs.iter().find(|input| input.name == name) {
            inputs.push(tensor(input, value)?);
            return Ok(());
        }
        if value.is_array() || value.is_object() || value.is_null() {
            let name = Quoted(&name);
            return Err(ServiceError::invalid(format!(
                "{name} is no input of the model, and a parameter is a string, a number or a boolean"
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

/// An input from one value or a list of them: the last dimension has as many, those before it have one.
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
            Quoted(&input.name)
        )));
    }
    let mut shape = vec![1; input.shape.dims().len()];
    if let Some(last) = shape.last_mut() {
        *last = data.len();
    }
    Ok(json!({ "name": input.name, "datatype": input.datatype.name(), "shape": shape, "data": data }))
}

/// An answer as this extension has it: a value where an output has one element, else a list.
fn show(response: &InferResponse) -> Result<Value, ServiceError> {
    let encoded = encode_response(response, &BinaryOutputs::all(false), NonFinite::Null)?;
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(&encoded.json) else {
        return Err(ServiceError::internal("the answer could not be written"));
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
