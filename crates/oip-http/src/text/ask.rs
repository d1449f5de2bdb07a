//! Handles one request to a text route: decodes it, selects a model, runs it and encodes the response, under
//! the request's lease.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    http::{StatusCode, request::Parts},
    response::Response,
};
use bytes::Bytes;
use oip_resources::{Charge, Laps, Lease, Phase, RequestNotes};
use oip_service::{Grant, RequestContext};
use oip_types::{
    BytesTensor, ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ParameterValue,
    ServiceError, TensorValue,
};
use serde::de::DeserializeOwned;
use tensor_core::QuotedName;

use crate::{
    app::App,
    described_models::{ready_models, takes_texts},
    infer::{in_time, receive, run},
    leased::mark,
    missing::{check_ready, may_see},
    response,
    text::{list::Texts, print::JsonText},
};

/// Maximum memory of the decoded texts per byte of JSON. `[],` as a list of token ids, 3 bytes, becomes 6
/// bytes: a length and `[]`. While a buffer grows, the old one and the new one, which is twice as large, take
/// up to three times as much.
const DECODED: u64 = 8;

/// Memory for printing per byte of the outputs: a copy of the numbers, and 16 bytes for each label, which has
/// at least 9 bytes with its length and its score.
const PRINTING: usize = 3;

/// Maximum length of an FP32 number in JSON, in bytes.
const PRINTED: usize = 16;

/// The decoded request of a text route.
pub(crate) struct TextRequest {
    pub(crate) texts: Texts,
    pub(crate) options: TextOptions,
}

/// A request without its texts.
pub(crate) struct TextOptions {
    /// The model that the client names; `None` selects the only suitable model.
    pub(crate) model: Option<String>,
    /// The outputs to request; the model must have the first of them.
    pub(crate) outputs: &'static [&'static str],
    /// Alternative outputs for models that lack the first output; empty if there are none.
    pub(crate) or_outputs: &'static [&'static str],
    /// Boolean parameters of the request.
    pub(crate) flags: Vec<(&'static str, bool)>,
}

/// A response of a text model.
pub(crate) struct TextResponse {
    pub(crate) response: InferResponse,
    /// The second texts of the request's pairs.
    pairs: Option<BytesTensor>,
}

impl TextResponse {
    /// Returns the floats of an output, with the row length.
    pub(crate) fn rows(&self, output: &str) -> Result<(Vec<f32>, usize), ServiceError> {
        let value = self.output(output)?;
        let tensor = value.as_fixed().ok_or_else(|| other_output(output))?;
        let width = value.shape().dims().get(1).copied().unwrap_or(1);
        let values = tensor.to_vec::<f32>().map_err(|_| other_output(output))?;
        Ok((values, usize::try_from(width).unwrap_or(usize::MAX).max(1)))
    }

    /// Returns the strings of an output.
    pub(crate) fn strings(&self, output: &str) -> Result<Vec<&str>, ServiceError> {
        let value = self.output(output)?;
        let strings = value.as_bytes().ok_or_else(|| other_output(output))?;
        let strings = strings.iter().map(std::str::from_utf8);
        strings
            .collect::<Result<_, _>>()
            .map_err(|_| other_output(output))
    }

    /// Returns the second texts of the request's pairs.
    pub(crate) fn pairs(&self) -> Vec<&str> {
        let pairs = self.pairs.iter().flat_map(BytesTensor::iter);
        // The texts were strings of JSON.
        pairs
            .map(|text| std::str::from_utf8(text).unwrap_or_default())
            .collect()
    }

    /// Returns the total number of tokens, if the model counts them.
    pub(crate) fn tokens(&self) -> i64 {
        let counts = self
            .response
            .output("token_count")
            .and_then(TensorValue::as_fixed);
        counts
            .and_then(|counts| counts.to_vec::<i64>().ok())
            .map_or(0, |counts| counts.iter().sum())
    }

    pub(crate) fn has(&self, output: &str) -> bool {
        self.response.output(output).is_some()
    }

    fn output(&self, name: &str) -> Result<&TensorValue, ServiceError> {
        self.response.output(name).ok_or_else(|| other_output(name))
    }
}

fn other_output(name: &str) -> ServiceError {
    ServiceError::internal(format!(
        "the output {} is not that of a text model",
        QuotedName(name)
    ))
}

/// Handles a text route. `read` decodes the client's JSON into a request and a context; `print` encodes the
/// response from the result and the context.
pub(crate) async fn answered<J, K>(
    app: App,
    request: Request,
    read: fn(J) -> Result<(TextRequest, K), ServiceError>,
    print: fn(&TextResponse, K, &mut JsonText) -> Result<(), ServiceError>,
) -> Result<Response, ServiceError>
where
    J: DeserializeOwned + Send + 'static,
    K: Send + 'static,
{
    let lease = Lease::new(&app.config.budget, &app.config.time);
    // Dropping this future when the client disconnects cancels all work.
    let guard = lease.guard();
    let (head, body) = request.into_parts();
    let notes = head.extensions.get::<Arc<RequestNotes>>().cloned();
    if let Some(notes) = &notes {
        lease.set_notes(notes.clone());
    }
    let mut laps = lease.laps();
    // Deadline errors do not name the model until it is known.
    let nameless = ModelRef::new("text", None)?;
    let received = receive_decoded(&app, &head, body, read, &lease, &mut laps);
    let (decoded, tree) = in_time(&lease, nameless, received).await?;
    let DecodedText {
        ask,
        texts,
        pairs,
        kept,
    } = decoded;
    let metadata = addressed(&app, &head, &ask).await?;
    let model = ModelRef::new(&metadata.name, None)?;
    if let Some(notes) = &notes {
        notes.set_model(&metadata.name);
    }
    let request = question(model, &metadata, &ask, texts, pairs.clone())?;
    drop(ask);
    let overhead = lease.charge(request.overhead_bytes() as u64)?;
    let cx = RequestContext::for_request(&request, &lease, None, &app.config.time)?;
    let printed = async {
        let response = oip_service::respond(&app.service, &app.config.cpu, request, cx).await?;
        drop(overhead);
        lease.note_version(response.model_version.as_deref());
        laps.skip();
        let given = TextResponse { response, pairs };
        let print = move |given: &TextResponse, text: &mut JsonText| print(given, kept, text);
        let printed = encode(&app, &lease, model, (given, tree), print).await;
        laps.end(Phase::Encode);
        printed
    };
    let body = in_time(&lease, model, printed).await?;
    guard.disarm();
    Ok(mark(response::json(StatusCode::OK, body)))
}

/// Receives a body and decodes it. Also returns the charge for the memory of the decoded texts.
async fn receive_decoded<J, K>(
    app: &App,
    head: &Parts,
    body: Body,
    read: fn(J) -> Result<(TextRequest, K), ServiceError>,
    lease: &Lease,
    laps: &mut Laps,
) -> Result<(DecodedText<K>, Charge), ServiceError>
where
    J: DeserializeOwned + Send + 'static,
    K: Send + 'static,
{
    let body = receive(app, &head.headers, body, app.config.max_body_bytes, lease).await?;
    laps.end(Phase::Read);
    let tree = lease.charge((body.len() as u64).saturating_mul(DECODED))?;
    let bytes = body.len();
    let decoding = {
        let lease = lease.clone();
        move || decode(&body, read, &lease)
    };
    let decoded = run(&app.config.cpu, lease, bytes, decoding).await;
    laps.end(Phase::Decode);
    decoded.map(|decoded| (decoded, tree))
}

/// Encodes a response with `print`, then frees it together with the charge of the decoded request.
async fn encode(
    app: &App,
    lease: &Lease,
    model: ModelRef<'_>,
    (given, tree): (TextResponse, Charge),
    print: impl FnOnce(&TextResponse, &mut JsonText) -> Result<(), ServiceError> + Send + 'static,
) -> Result<Bytes, ServiceError> {
    let outputs = given.response.outputs.iter();
    let bytes = outputs
        .map(|output| output.value.raw().len())
        .fold(0, usize::saturating_add);
    let charge = lease.charge(bytes.saturating_mul(PRINTING) as u64)?;
    let mut text = JsonText::new(lease, app.config.max_answer_bytes)?;
    let printing = move || {
        print(&given, &mut text)?;
        drop((given, tree, charge));
        Ok(text.into_body())
    };
    let bytes = bytes.saturating_mul(PRINTED / 4);
    let printed = run(&app.config.cpu, lease, bytes, printing).await;
    printed.map_err(|error| error.within(model))
}

/// The decoded body of a text route.
struct DecodedText<K> {
    ask: TextOptions,
    texts: BytesTensor,
    pairs: Option<BytesTensor>,
    /// The context that the response needs.
    kept: K,
}

/// Decodes a body, whose JSON `read` turns into a request and a context.
fn decode<J, K>(
    body: &[u8],
    read: fn(J) -> Result<(TextRequest, K), ServiceError>,
    lease: &Lease,
) -> Result<DecodedText<K>, ServiceError>
where
    J: DeserializeOwned,
{
    let json = serde_json::from_slice(body)
        .map_err(|error| ServiceError::invalid(format!("the body is not as expected: {error}")))?;
    let (ask, kept) = read(json)?;
    let (texts, pairs) = ask.texts.into_tensors(lease)?;
    Ok(DecodedText {
        ask: ask.options,
        texts,
        pairs,
        kept,
    })
}

/// Returns the requested model after checking access and its outputs.
async fn addressed(app: &App, head: &Parts, ask: &TextOptions) -> Result<Arc<ModelMetadata>, ServiceError> {
    let grant = head.extensions.get::<Grant>();
    let wanted = || {
        [ask.outputs, ask.or_outputs]
            .into_iter()
            .filter_map(|outputs| outputs.first())
    };
    let fits = |metadata: &ModelMetadata| {
        let names: Vec<&str> = wanted().copied().collect();
        takes_texts(metadata, &names)
    };
    let kind = || {
        wanted()
            .map(|name| QuotedName(name).to_string())
            .collect::<Vec<_>>()
            .join(" or ")
    };
    if let Some(name) = &ask.model {
        if let Some(grant) = grant {
            grant.check_model(name)?;
        }
        let model = ModelRef::new(name, None)?;
        check_ready(app, model, grant.cloned()).await?;
        let metadata = app.service.model_metadata(model)?;
        return match fits(&metadata) {
            true => Ok(metadata),
            false => {
                let message = format!("it is no text model with the output {}", kind());
                Err(ServiceError::invalid(message).within(model))
            }
        };
    }
    let mut found = ready_models(&*app.service, &|name| may_see(grant, name));
    found.retain(|metadata| fits(metadata));
    match &found[..] {
        [only] => {
            if let Some(grant) = grant {
                grant.check_model(&only.name)?;
            }
            Ok(only.clone())
        }
        [] => Err(ServiceError::new(
            ErrorCode::NotFound,
            format!("no text model with the output {} is ready", kind()),
        )),
        [first, second, ..] => Err(ServiceError::invalid(format!(
            "several models can answer, such as {} and {}: name one as \"model\"",
            QuotedName(&first.name),
            QuotedName(&second.name)
        ))),
    }
}

/// Creates the equivalent protocol request.
fn question(
    model: ModelRef<'_>,
    metadata: &ModelMetadata,
    ask: &TextOptions,
    texts: BytesTensor,
    pairs: Option<BytesTensor>,
) -> Result<InferRequest, ServiceError> {
    let has = |name: &str| metadata.outputs.iter().any(|output| output.name == name);
    let first = ask.outputs.first().is_some_and(|name| has(name));
    let outputs = if first { ask.outputs } else { ask.or_outputs };
    let mut request = InferRequest::new(model).with_input("text", texts);
    if let Some(pairs) = pairs {
        request = request.with_input("text_pair", pairs);
    }
    for name in outputs.iter().filter(|name| has(name)) {
        request = request.with_output(*name);
    }
    for (name, flag) in &ask.flags {
        request
            .parameters
            .insert((*name).to_owned(), ParameterValue::Bool(*flag));
    }
    Ok(request)
}
