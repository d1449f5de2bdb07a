//! The story of one inference: read, decode, run, encode, all within the lease of the request.

use std::{
    error::Error,
    pin::pin,
    sync::{Arc, LazyLock},
};

use axum::{
    body::HttpBody,
    http::{HeaderMap, Request},
    response::Response,
};
use bytes::Bytes;
use memchr::{memchr_iter, memmem::Finder};
#[cfg(unix)]
use oip_service::ConnectionRegion;
use oip_service::{
    CpuPool, Lease, Phase, RequestContext, RequestNotes, SharedInputs,
    compression::{deflate, inflate},
};
use oip_types::{
    DataType, ErrorCode, InferResponse, ModelRef, ServiceError,
    rest::{
        BinaryOutputs, DecodedRequest, EncodedPieces, decode_raw_request, decode_request_with,
        encode_response_within, parse_header_length,
    },
};
use tokio::time::timeout_at;

use crate::{
    answer::{self, Encoded},
    app::App,
    content_encoding::{self, ContentEncoding},
    head::HEADER_LENGTH,
    negotiation::Wanted,
    read_body::read_body,
};

/// Bytes of JSON above which parsing and printing leave the reactor's thread: at a nanosecond or so per byte, that
/// is when other connections would begin to notice.
const LARGE: usize = 64 << 10;

/// Bytes of inputs in the connection's own region above which they are copied elsewhere. It is mapped, so that copying takes less than
/// waking another thread.
const QUICK_COPY: u64 = 256 << 10;

/// Bytes of binary data above which BYTES are read elsewhere: each element is looked at, and a raw body is copied.
/// Numbers stay where they are in the body, however many.
const LARGE_BYTES: usize = 1 << 20;

/// Answers an inference request.
pub(crate) async fn infer<B>(
    app: App,
    model: ModelRef<'_>,
    request: Request<B>,
) -> Result<Response, ServiceError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let lease = Lease::new(&app.config.budget, &app.config.time);
    // When the client leaves, this future is dropped: then all work for it ends.
    let guard = lease.guard();
    let (head, body) = request.into_parts();
    if let Some(notes) = head.extensions.get::<Arc<RequestNotes>>() {
        notes.set_model(model.name());
        lease.set_notes(notes.clone());
    }
    #[cfg(unix)]
    if let Some(region) = head.extensions.get::<ConnectionRegion>() {
        lease.use_memory_of(region);
    }
    let mut laps = lease.laps();
    let wanted = Wanted::from_headers(&head.headers);
    let decoded = async {
        let limit = app.config.max_body_bytes;
        let body = receive(&app, &head.headers, body, limit, &lease).await?;
        laps.end(Phase::Read);
        let header_length = head.headers.get(HEADER_LENGTH);
        let header_length = header_length
            .map(|value| parse_header_length(value.as_bytes(), body.len()))
            .transpose()?;
        let is_other = header_length.is_none() && is_no_json(&body);
        let decoded = decode(&app, model, body, header_length, &lease).await;
        laps.end(Phase::Decode);
        decoded.map_err(|error| {
            let error = if is_other { advise_raw(error) } else { error };
            error.within(model)
        })
    };
    let DecodedRequest {
        request,
        mut binary_outputs,
        ..
    } = in_time(&lease, model, pin!(decoded)).await?;
    if wanted.json_only {
        binary_outputs = BinaryOutputs::all(false);
    }
    let overhead = lease.charge(request.overhead_bytes() as u64)?;
    let cx = RequestContext::for_request(&request, &lease, None, &app.config.time)?;

    let answered = async {
        let mut response = oip_service::respond(&app.service, &app.config.cpu, request, cx).await?;
        // The model sees what the client has sent: over gRPC there is no id either, then.
        response.id.get_or_insert_with(|| app.request_ids.next_id());
        drop(overhead);
        lease.note_version(response.model_version.as_deref());
        laps.skip();
        let encoded = encode(&app, response, binary_outputs, wanted, &lease).await;
        laps.end(Phase::Encode);
        encoded.map_err(|error| error.within(model))
    };
    let encoded = in_time(&lease, model, pin!(answered)).await?;
    guard.disarm();
    Ok(answer::inference(encoded))
}

/// Whether a body that should be JSON begins like none, as images and arrays do.
fn is_no_json(body: &[u8]) -> bool {
    let start = body.iter().take(64).find(|byte| !byte.is_ascii_whitespace());
    start.is_some_and(|byte| !matches!(byte, b'{' | b'[' | b'"'))
}

/// Says how bytes are sent as they are.
fn advise_raw(error: ServiceError) -> ServiceError {
    if error.code() != ErrorCode::InvalidArgument {
        return error;
    }
    ServiceError::invalid(format!(
        "{}; a body that is not JSON, such as an image, is sent as the model's only input with the header \
         Inference-Header-Content-Length: 0",
        error.message()
    ))
}

/// Waits for a part of the work until the deadline that the lease has now. The work is best pinned where it is: it is large to be moved.
pub(crate) async fn in_time<T>(
    lease: &Lease,
    model: ModelRef<'_>,
    work: impl Future<Output = Result<T, ServiceError>>,
) -> Result<T, ServiceError> {
    let Some(deadline) = lease.deadline() else {
        return work.await;
    };
    timeout_at(deadline.into(), work).await.unwrap_or_else(|_| {
        let passed = ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed");
        Err(passed.within(model))
    })
}

/// Reads the body and undoes its compression.
pub(crate) async fn receive<B>(
    app: &App,
    headers: &HeaderMap,
    body: B,
    limit: usize,
    lease: &Lease,
) -> Result<Bytes, ServiceError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let encoding = content_encoding::from_headers(headers)?;
    let body = read_body(headers, body, limit, lease).await?;
    let Some(encoding) = encoding else {
        return Ok(body);
    };
    // A small body may become a large one: this is the most that it can.
    let bytes = (body.len() as u64).saturating_mul(1000).min(limit as u64);
    let inflating = {
        let lease = lease.clone();
        move || inflate(&lease, encoding, &body, limit)
    };
    Box::pin(app.config.cpu.run(lease, bytes, inflating)).await
}

/// Reads a request, off the reactor's thread where that takes long.
async fn decode(
    app: &App,
    model: ModelRef<'_>,
    body: Bytes,
    header_length: Option<usize>,
    lease: &Lease,
) -> Result<DecodedRequest, ServiceError> {
    let json = header_length.unwrap_or(body.len());
    let is_quick = json <= LARGE
        && !(body.len() - json > LARGE_BYTES && takes_bytes(app, model))
        && !(app.service.shared_memory().is_some() && may_name_shared_memory(&body[..json]));
    let mut copied = 0;
    if is_quick {
        let shared = SharedInputs::new(&*app.service, lease).up_to(QUICK_COPY);
        let decoded = decode_now(app, model, &body, header_length, lease, &shared);
        if !shared.is_too_much() {
            return decoded;
        }
        copied = shared.asked();
    }
    // A body of few bytes may have much copied, and how much shows only on the way: then it is begun anew, as a large job.
    let bytes = body.len() as u64;
    let reading = Reading {
        app,
        model,
        body: &body,
        header_length,
        lease,
    };
    if bytes.saturating_add(copied) <= CpuPool::SMALL
        && let Some(decoded) = reading.on_pool(bytes, CpuPool::SMALL - bytes).await?
    {
        return Ok(decoded);
    }
    let decoded = reading.on_pool(bytes.max(CpuPool::SMALL + 1), u64::MAX).await?;
    decoded.ok_or_else(|| ServiceError::internal("the request was not read"))
}

/// A request that the pool is to read.
struct Reading<'r> {
    app: &'r App,
    model: ModelRef<'r>,
    body: &'r Bytes,
    header_length: Option<usize>,
    lease: &'r Lease,
}

impl Reading<'_> {
    /// Reads it as a job of so many bytes. `None` if more than `most` bytes are to be copied.
    async fn on_pool(&self, bytes: u64, most: u64) -> Result<Option<DecodedRequest>, ServiceError> {
        let (app, lease, body) = (self.app.clone(), self.lease.clone(), self.body.clone());
        let (name, version) = (
            self.model.name().to_owned(),
            self.model.version().map(str::to_owned),
        );
        let header_length = self.header_length;
        let decoding = move || {
            let model = ModelRef::new(&name, version.as_deref())?;
            let shared = SharedInputs::new(&*app.service, &lease).up_to(most);
            let decoded = decode_now(&app, model, &body, header_length, &lease, &shared);
            match shared.is_too_much() {
                true => Ok(None),
                false => decoded.map(Some),
            }
        };
        Box::pin(self.app.config.cpu.run(self.lease, bytes, decoding)).await
    }
}

/// Whether a model has inputs of BYTES. What is wrong with the model is said later.
fn takes_bytes(app: &App, model: ModelRef<'_>) -> bool {
    let metadata = app.service.model_metadata(model);
    metadata.is_ok_and(|metadata| {
        let mut inputs = metadata.inputs.iter();
        inputs.any(|input| input.datatype == DataType::Bytes)
    })
}

/// Whether inputs may be in shared memory, from which they are copied. A name may be written with escapes.
fn may_name_shared_memory(json: &[u8]) -> bool {
    static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("shared_memory_region"));
    let has_escape = || memchr_iter(b'\\', json).any(|at| json.get(at + 1) == Some(&b'u'));
    NAME.find(json).is_some() || has_escape()
}

fn decode_now(
    app: &App,
    model: ModelRef<'_>,
    body: &Bytes,
    header_length: Option<usize>,
    lease: &Lease,
    shared: &SharedInputs<'_>,
) -> Result<DecodedRequest, ServiceError> {
    if header_length == Some(0) {
        let metadata = app.service.model_metadata(model)?;
        return decode_raw_request(model, &metadata, body, lease);
    }
    decode_request_with(model, body, header_length, &app.config.limits, shared, lease)
}

/// Encodes an answer and compresses it as the client wants, off the reactor's thread where that takes long.
async fn encode(
    app: &App,
    response: InferResponse,
    binary_outputs: BinaryOutputs,
    wanted: Wanted,
    lease: &Lease,
) -> Result<Encoded, ServiceError> {
    let config = &app.config;
    let printed = response
        .outputs
        .iter()
        .filter(|output| output.shared_memory.is_none() && !binary_outputs.is_binary(&output.name));
    let printed = printed.map(|output| output.value.raw().len()).sum::<usize>();
    let encoding = {
        let (non_finite, limit, lease) = (config.non_finite, config.max_answer_bytes, lease.clone());
        move || encode_response_within(&response, &binary_outputs, non_finite, &lease, limit)
    };
    let body = run(&config.cpu, lease, printed, encoding).await?;
    let chosen = wanted.encoding(
        body.len(),
        body.header_length().is_some(),
        config.min_compressed_bytes,
    );
    let Some(chosen) = chosen else {
        return Ok(Encoded::plain(body));
    };
    let bytes = body.len();
    let compressing = {
        let lease = lease.clone();
        move || compress(&lease, body, chosen)
    };
    run(&config.cpu, lease, bytes, compressing).await
}

/// Compresses an answer. Each part of it is freed once it is compressed.
fn compress(lease: &Lease, body: EncodedPieces, encoding: ContentEncoding) -> Result<Encoded, ServiceError> {
    let header_length = body.header_length();
    Ok(Encoded {
        parts: deflate(lease, encoding, body.into_parts())?,
        header_length,
        encoding: Some(encoding),
    })
}

/// Does some work on so many bytes, on the pool if they are many.
pub(crate) async fn run<T: Send + 'static>(
    cpu: &CpuPool,
    lease: &Lease,
    bytes: usize,
    work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
) -> Result<T, ServiceError> {
    if bytes <= LARGE {
        work()
    } else {
        Box::pin(cpu.run(lease, bytes as u64, work)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_noticed_under_any_spelling() {
        for (json, may) in [
            (r#"{"shared_memory_region": "r"}"#, true),
            (r#"{"shared\u005fmemory_region": "r"}"#, true),
            (r#"{"a\\n": "shared_memory"}"#, false),
            (r#"{"inputs": [{"name": "x"}]}"#, false),
            (r"\", false),
            ("", false),
        ] {
            assert_eq!(may_name_shared_memory(json.as_bytes()), may, "{json}");
        }
        assert!(may_name_shared_memory(b"\xff \\u"));
    }
}
