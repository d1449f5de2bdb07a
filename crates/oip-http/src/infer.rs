use axum::{body::Body, extract::Request, http::HeaderMap, response::Response};
use bytes::Bytes;
use oip_service::{Charge, Lease, RequestContext, answer as answer_request};
use oip_types::{
    DataType, ErrorCode, InferResponse, ModelRef, ServiceError,
    rest::{
        BinaryOutputs, DecodedRequest, EncodedBody, HEADER_LENGTH, decode_raw_request, decode_request_with,
        encode_response, parse_header_length,
    },
};
use tokio::{task::spawn_blocking, time::timeout_at};

use crate::{
    answer::{self, Compressed},
    app::App,
    content_encoding::ContentEncoding,
    negotiation::Wanted,
    read_body::read_body,
    shared_memory::SharedInputs,
};

/// Bytes of JSON above which parsing and printing leave the reactor's thread: at a nanosecond or so per byte, that
/// is when other connections would begin to notice.
const LARGE: usize = 64 << 10;

/// Bytes of binary data above which BYTES are read elsewhere: each element is looked at, and a raw body is copied.
/// Numbers stay where they are in the body, however many.
const LARGE_BYTES: usize = 1 << 20;

/// Answers an inference request.
pub(crate) async fn infer(app: App, model: ModelRef<'_>, request: Request) -> Result<Response, ServiceError> {
    let lease = Lease::new(&app.config.budget, &app.config.time);
    let (head, body) = request.into_parts();
    let limit = app.config.max_body_bytes;
    let (body, permit) = receive(&app, &head.headers, body, limit).await?;
    let mut permits = vec![permit];
    let header_length = head.headers.get(HEADER_LENGTH);
    let header_length = header_length
        .map(|value| parse_header_length(value.as_bytes(), body.len()))
        .transpose()?;

    let wanted = Wanted::from_headers(&head.headers);

    let decoded = decode(&app, model, body, header_length).await;
    let decoded = decoded.map_err(|error| error.within(model))?;
    let (
        DecodedRequest {
            mut request,
            mut binary_outputs,
        },
        more,
    ) = decoded;
    if wanted.json_only {
        binary_outputs = BinaryOutputs::all(false);
    }
    permits.extend(more);
    request.id.get_or_insert_with(|| app.request_ids.next());
    let cx = RequestContext::for_request(&request, &lease, None, &app.config.time)?;

    let response = match cx.deadline() {
        None => answer_request(&app.service, &app.config.cpu, request, cx).await,
        Some(deadline) => {
            let inference = answer_request(&app.service, &app.config.cpu, request, cx);
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
    let encoding = wanted.encoding(
        body.len(),
        body.header_length().is_some(),
        app.config.min_compressed_bytes,
    );
    match encoding {
        None => Ok(answer::inference(body, permits)),
        Some(encoding) => Ok(answer::compressed(compress(body, encoding).await?, permits)),
    }
}

/// Compresses an answer, off the reactor's thread where it takes long.
async fn compress(body: EncodedBody, encoding: ContentEncoding) -> Result<Compressed, ServiceError> {
    let is_large = body.len() > LARGE;
    let compress = move || {
        let header_length = body.header_length();
        let bytes = encoding.encode(body.into_parts());
        let failed = |error| ServiceError::internal("the answer could not be compressed").caused_by(error);
        bytes.map_err(failed).map(|bytes| Compressed {
            bytes,
            header_length,
            encoding,
        })
    };
    if is_large {
        spawn_blocking(compress).await.map_err(lost)?
    } else {
        compress()
    }
}

/// Reads the body and undoes its compression.
pub(crate) async fn receive(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<(Bytes, Charge), ServiceError> {
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

/// Reads a request, and gives the permits for what of it is in shared memory.
async fn decode(
    app: &App,
    model: ModelRef<'_>,
    body: Bytes,
    header_length: Option<usize>,
) -> Result<(DecodedRequest, Vec<Charge>), ServiceError> {
    let json = header_length.unwrap_or(body.len());
    if json <= LARGE && !(body.len() - json > LARGE_BYTES && takes_bytes(app, model)) {
        return decode_now(app, model, &body, header_length);
    }
    let app = app.clone();
    let (name, version) = (model.name().to_owned(), model.version().map(str::to_owned));
    let decoding = move || {
        decode_now(
            &app,
            ModelRef::new(&name, version.as_deref())?,
            &body,
            header_length,
        )
    };
    spawn_blocking(decoding).await.map_err(lost)?
}

/// Whether a model has inputs of BYTES. What is wrong with the model is said later.
fn takes_bytes(app: &App, model: ModelRef<'_>) -> bool {
    let metadata = app.service.model_metadata(model);
    metadata.is_ok_and(|metadata| {
        let mut inputs = metadata.inputs.iter();
        inputs.any(|input| input.datatype == DataType::Bytes)
    })
}

fn decode_now(
    app: &App,
    model: ModelRef<'_>,
    body: &Bytes,
    header_length: Option<usize>,
) -> Result<(DecodedRequest, Vec<Charge>), ServiceError> {
    if header_length == Some(0) {
        let metadata = app.service.model_metadata(model)?;
        return decode_raw_request(model, &metadata, body).map(|decoded| (decoded, Vec::new()));
    }
    let shared = SharedInputs::new(&*app.service, &app.config.budget);
    let decoded = decode_request_with(model, body, header_length, &app.config.limits, &shared)?;
    Ok((decoded, shared.into_permits()))
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
