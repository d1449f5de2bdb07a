use axum::{body::Body, extract::Request, http::HeaderMap, response::Response};
use bytes::Bytes;
use oip_service::{BudgetPermit, RequestContext, answer as answer_request};
use oip_types::{
    ErrorCode, InferResponse, ModelRef, ServiceError,
    rest::{
        BinaryOutputs, DecodedRequest, EncodedBody, HEADER_LENGTH, decode_request, encode_response,
        parse_header_length,
    },
};
use tokio::{task::spawn_blocking, time::timeout_at};

use crate::{answer, app::App, content_encoding::ContentEncoding, read_body::read_body};

/// Bytes of JSON above which parsing and printing leave the reactor's thread: at a nanosecond or so per byte, that
/// is when other connections would begin to notice.
const LARGE: usize = 64 << 10;

/// Answers an inference request.
pub(crate) async fn infer(app: App, model: ModelRef<'_>, request: Request) -> Result<Response, ServiceError> {
    let (head, body) = request.into_parts();
    let (body, permit) = receive(&app, &head.headers, body).await?;
    let header_length = head.headers.get(HEADER_LENGTH);
    let header_length = header_length
        .map(|value| parse_header_length(value.as_bytes(), body.len()))
        .transpose()?;

    let decoded = decode(&app, model, body, header_length)
        .await
        .map_err(|error| error.within(model))?;
    let DecodedRequest {
        mut request,
        binary_outputs,
    } = decoded;
    request.id.get_or_insert_with(|| app.request_ids.next());
    let cx = RequestContext::for_request(&request, None, &app.config.time)?;

    let response = match cx.deadline() {
        None => answer_request(&*app.service, request, cx).await,
        Some(deadline) => {
            let inference = answer_request(&*app.service, request, cx);
            let passed =
                |_| Err(ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed").within(model));
            timeout_at(deadline.into(), inference)
                .await
                .unwrap_or_else(passed)
        }
    }?;
    let body = encode(&app, response, binary_outputs)
        .await
        .map_err(|error| error.within(model))?;
    if body.len() > app.config.max_answer_bytes {
        let (found, limit) = (body.len(), app.config.max_answer_bytes);
        return Err(
            ServiceError::internal(format!("the answer has {found} bytes, the limit is {limit}"))
                .within(model),
        );
    }
    Ok(answer::inference(body, permit))
}

/// Reads the body and undoes its compression.
async fn receive(app: &App, headers: &HeaderMap, body: Body) -> Result<(Bytes, BudgetPermit), ServiceError> {
    let limit = app.config.max_body_bytes;
    let encoding = ContentEncoding::from_headers(headers)?;
    let (body, mut permit) = read_body(headers, body, limit, &app.config.budget).await?;
    let Some(encoding) = encoding else {
        return Ok((body, permit));
    };
    let decoded = spawn_blocking(move || encoding.decode(&body, limit))
        .await
        .map_err(lost)??;
    permit.grow(decoded.len() as u64)?;
    Ok((decoded, permit))
}

async fn decode(
    app: &App,
    model: ModelRef<'_>,
    body: Bytes,
    header_length: Option<usize>,
) -> Result<DecodedRequest, ServiceError> {
    if header_length.unwrap_or(body.len()) <= LARGE {
        return decode_request(model, &body, header_length, &app.config.limits);
    }
    let limits = app.config.limits.clone();
    let (name, version) = (model.name().to_owned(), model.version().map(str::to_owned));
    let decoding = move || {
        let model = ModelRef::new(&name, version.as_deref())?;
        decode_request(model, &body, header_length, &limits)
    };
    spawn_blocking(decoding).await.map_err(lost)?
}

async fn encode(
    app: &App,
    response: InferResponse,
    binary_outputs: BinaryOutputs,
) -> Result<EncodedBody, ServiceError> {
    let non_finite = app.config.non_finite;
    let printed = response
        .outputs
        .iter()
        .filter(|output| !binary_outputs.is_binary(&output.name));
    if printed.map(|output| output.value.raw().len()).sum::<usize>() <= LARGE {
        return encode_response(&response, &binary_outputs, non_finite);
    }
    spawn_blocking(move || encode_response(&response, &binary_outputs, non_finite))
        .await
        .map_err(lost)?
}

/// Work that was given to another thread and did not come back: it panicked, or the runtime is ending.
fn lost(error: tokio::task::JoinError) -> ServiceError {
    ServiceError::internal("the request was lost").caused_by(error)
}
