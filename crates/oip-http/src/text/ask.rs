//! One request of texts: read, addressed to a model, run, printed, all within the lease of the request.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{StatusCode, request::Parts},
    response::Response,
};
use oip_service::{Grant, Lease, Phase, RequestContext, RequestNotes};
use oip_types::{
    BytesTensor, ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ParameterValue,
    ServiceError, TensorValue,
};
use serde::de::DeserializeOwned;
use tensor_core::{Quoted, Shape};

use crate::{
    answer,
    app::App,
    described_models::{ready_models, takes_texts},
    extensions::may_see,
    infer::{in_time, receive, run},
    leased::mark,
    missing::check_ready,
};

/// Bytes that a byte of JSON can become: a string of no characters, `"",`, has 24 and an allocation, a number in a list 32.
const DECODED: u64 = 24;

/// Bytes that a value of an output is printed as, at most.
const PRINTED: usize = 16;

/// A route's request, ready to be asked.
pub(crate) struct Ask {
    /// The model that the client names; the only one that can, if it names none.
    pub(crate) model: Option<String>,
    pub(crate) texts: Vec<String>,
    pub(crate) pairs: Option<Vec<String>>,
    /// Outputs, of which the model must have the first.
    pub(crate) outputs: &'static [&'static str],
    /// The same for models that have another first output; none where there is no other.
    pub(crate) or_outputs: &'static [&'static str],
    /// Parameters that are true, or false.
    pub(crate) flags: Vec<(&'static str, bool)>,
}

/// A response and the model that gave it.
pub(crate) struct Given {
    pub(crate) response: InferResponse,
}

impl Given {
    /// The floats of an output, with the length of a row.
    pub(crate) fn rows(&self, output: &str) -> Result<(Vec<f32>, usize), ServiceError> {
        let value = self.output(output)?;
        let tensor = value.as_fixed().ok_or_else(|| other_output(output))?;
        let width = value.shape().dims().get(1).copied().unwrap_or(1);
        let values = tensor.to_vec::<f32>().map_err(|_| other_output(output))?;
        Ok((values, usize::try_from(width).unwrap_or(usize::MAX).max(1)))
    }

    /// The strings of an output.
    pub(crate) fn strings(&self, output: &str) -> Result<Vec<String>, ServiceError> {
        let value = self.output(output)?;
        let strings = value.as_bytes().ok_or_else(|| other_output(output))?;
        Ok(strings
            .iter()
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect())
    }

    /// Tokens of all texts, where the model counts them.
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
    ServiceError::internal(format!("the output {} is not that of a text model", Quoted(name)))
}

/// Answers a route: `read` makes the question of the client's JSON, and what it keeps for `print`, which makes the answer's JSON.
pub(crate) async fn answered<J, K>(
    app: App,
    request: Request,
    read: fn(J) -> Result<(Ask, K), ServiceError>,
    print: fn(&Given, K) -> Result<Vec<u8>, ServiceError>,
) -> Result<Response, ServiceError>
where
    J: DeserializeOwned + Send + 'static,
    K: Send + 'static,
{
    let lease = Lease::new(&app.config.budget, &app.config.time);
    // When the client leaves, this future is dropped: then all work for it ends.
    let guard = lease.guard();
    let (head, body) = request.into_parts();
    let notes = head.extensions.get::<Arc<RequestNotes>>().cloned();
    if let Some(notes) = &notes {
        lease.set_notes(notes.clone());
    }
    let mut laps = lease.laps();
    // Until the model is known, the deadline is told of none.
    let nameless = ModelRef::new("text", None)?;
    let decoded = async {
        let body = receive(&app, &head.headers, body, app.config.max_body_bytes, &lease).await?;
        laps.end(Phase::Read);
        let tree = lease.charge((body.len() as u64).saturating_mul(DECODED))?;
        let bytes = body.len();
        let decoding = move || {
            let json = serde_json::from_slice(&body);
            let json =
                json.map_err(|error| ServiceError::invalid(format!("the body is not as expected: {error}")))?;
            let (ask, kept) = read(json)?;
            let texts = tensor(&ask.texts)?;
            let pairs = ask.pairs.as_deref().map(tensor).transpose()?;
            Ok((ask, texts, pairs, kept))
        };
        let decoded = run(&app.config.cpu, &lease, bytes, decoding).await;
        laps.end(Phase::Decode);
        decoded.map(|decoded| (decoded, tree))
    };
    let ((ask, texts, pairs, kept), tree) = in_time(&lease, nameless, decoded).await?;
    let metadata = addressed(&app, &head, &ask).await?;
    let model = ModelRef::new(&metadata.name, None)?;
    if let Some(notes) = &notes {
        notes.set_model(&metadata.name);
    }
    let request = question(model, &metadata, &ask, texts, pairs)?;
    drop(ask);
    let overhead = lease.charge(request.overhead_bytes() as u64)?;
    let cx = RequestContext::for_request(&request, &lease, None, &app.config.time)?;
    let printed = async {
        let response = oip_service::respond(&app.service, &app.config.cpu, request, cx).await?;
        drop(overhead);
        lease.note_version(response.model_version.as_deref());
        laps.skip();
        let tensors = response.outputs.iter().map(|output| output.value.raw().len());
        let bytes = tensors.fold(0, usize::saturating_add).saturating_mul(PRINTED / 4);
        let charge = lease.charge(bytes as u64)?;
        let given = Given { response };
        let printing = move || {
            let printed = print(&given, kept)?;
            drop(tree);
            Ok((printed, charge))
        };
        let printed = run(&app.config.cpu, &lease, bytes, printing).await;
        laps.end(Phase::Encode);
        printed.map_err(|error| error.within(model))
    };
    let (body, charge) = in_time(&lease, model, printed).await?;
    guard.disarm();
    Ok(mark(answer::json(StatusCode::OK, charge.own(body))))
}

/// Texts as an input.
fn tensor(texts: &[String]) -> Result<BytesTensor, ServiceError> {
    if texts.is_empty() {
        return Err(ServiceError::invalid("there is no text, expected at least one"));
    }
    BytesTensor::from_elements(Shape::vector(texts.len() as u64), texts)
}

/// The model that is asked, which the client may use and which has the output.
async fn addressed(app: &App, head: &Parts, ask: &Ask) -> Result<Arc<ModelMetadata>, ServiceError> {
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
            .map(|name| Quoted(name).to_string())
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
            Quoted(&first.name),
            Quoted(&second.name)
        ))),
    }
}

/// The request of the protocol that asks the same.
fn question(
    model: ModelRef<'_>,
    metadata: &ModelMetadata,
    ask: &Ask,
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
