//! Handles one inference request: receives, decodes, runs and encodes it, under the request's lease.

use std::{
    error::Error,
    pin::pin,
    sync::{Arc, LazyLock},
};

use axum::{
    body::HttpBody,
    http::{Extensions, HeaderMap, Request},
    response::Response,
};
use bytes::Bytes;
use memchr::{memchr_iter, memmem::Finder};
#[cfg(unix)]
use oip_resources::ConnectionRegion;
use oip_resources::{
    CpuPool, Lease, Phase, RequestNotes,
    compression::{deflate, inflate},
};
use oip_service::{RequestContext, SharedInputs, route::Route};
use oip_types::{
    DataType, ErrorCode, InferResponse, ModelRef, ServiceError,
    rest::{
        BinaryOutputs, DecodedRequest, EncodedPieces, decode_raw_request, decode_request_with,
        encode_response_within, parse_header_length,
    },
};
use tokio::time::timeout_at;

use crate::{
    app::App,
    content_encoding::{self, ContentEncoding},
    head::HEADER_LENGTH,
    missing::check_ready,
    negotiation::ResponsePreferences,
    read_body::read_body,
    response::{self, EncodedResponse},
};

/// JSON larger than this is parsed and encoded off the reactor thread: at about a nanosecond per byte, other
/// connections would notice the delay.
const LARGE: usize = 64 << 10;

/// Inputs up to this size in the connection's own region are copied on the reactor thread: the region is
/// mapped, so copying takes less time than waking another thread.
const QUICK_COPY: u64 = 256 << 10;

/// Binary data larger than this is decoded off the reactor thread if its elements are all visited (BYTES), or
/// if it is copied (a raw body). Numbers are left in the body, without being copied.
const LARGE_BYTES: usize = 1 << 20;

/// Handles an inference request if its model is ready. The request body for an unknown model is not read.
pub(crate) async fn infer_ready<B>(
    app: &App,
    route: &Route,
    request: Request<B>,
) -> Result<Response, ServiceError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let model = route.model()?;
    check_ready(app, model, request.extensions().get().cloned()).await?;
    infer(app, model, request).await
}

async fn infer<B>(app: &App, model: ModelRef<'_>, request: Request<B>) -> Result<Response, ServiceError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let lease = Lease::new(&app.config.budget, &app.config.time);
    // Dropping this future when the client disconnects cancels all work.
    let guard = lease.guard();
    let (head, body) = request.into_parts();
    attach(&lease, &head.extensions, model);
    let mut laps = lease.laps();
    let wanted = ResponsePreferences::from_headers(&head.headers);
    let decoded = async {
        let limit = app.config.max_body_bytes;
        let body = receive(app, &head.headers, body, limit, &lease).await?;
        laps.end(Phase::Read);
        let header_length = head.headers.get(HEADER_LENGTH);
        let header_length = header_length
            .map(|value| parse_header_length(value.as_bytes(), body.len()))
            .transpose()?;
        let is_other = header_length.is_none() && is_no_json(&body);
        let decoded = decode(app, model, body, header_length, &lease).await;
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
        // A generated id is added only to the response: the model sees the request without an id, as over
        // gRPC.
        response.id.get_or_insert_with(|| app.request_ids.next_id());
        drop(overhead);
        lease.note_version(response.model_version.as_deref());
        laps.skip();
        let encoded = encode(app, response, binary_outputs, wanted, &lease).await;
        laps.end(Phase::Encode);
        encoded.map_err(|error| error.within(model))
    };
    let encoded = in_time(&lease, model, pin!(answered)).await?;
    guard.disarm();
    Ok(response::inference(encoded))
}

/// Attaches the record of a request's phases, and the shared memory of its connection, to its lease.
fn attach(lease: &Lease, extensions: &Extensions, model: ModelRef<'_>) {
    if let Some(notes) = extensions.get::<Arc<RequestNotes>>() {
        notes.set_model(model.name());
        lease.set_notes(notes.clone());
    }
    #[cfg(unix)]
    if let Some(region) = extensions.get::<ConnectionRegion>() {
        lease.use_memory_of(region);
    }
}

/// Returns whether a body that should be JSON is certainly not JSON, such as an image or an array file.
fn is_no_json(body: &[u8]) -> bool {
    let start = body.iter().take(64).find(|byte| !byte.is_ascii_whitespace());
    start.is_some_and(|byte| !matches!(byte, b'{' | b'[' | b'"'))
}

/// Adds advice on sending binary data to an error.
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

/// Awaits `work` until the lease's deadline. Callers pin the work in place, because moving it is expensive.
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

/// Reads and decompresses the body.
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
    // The product is an upper bound on the decompressed size.
    let bytes = (body.len() as u64).saturating_mul(1000).min(limit as u64);
    let inflating = {
        let lease = lease.clone();
        move || inflate(&lease, encoding, &body, limit)
    };
    Box::pin(app.config.cpu.run(lease, bytes, inflating)).await
}

/// Decodes a request, off the reactor thread if decoding takes a long time.
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
    // A short body can require a large copy, which only decoding reveals. In that case, decoding starts over
    // as a large job.
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

/// A request to be decoded on the pool.
struct Reading<'r> {
    app: &'r App,
    model: ModelRef<'r>,
    body: &'r Bytes,
    header_length: Option<usize>,
    lease: &'r Lease,
}

impl Reading<'_> {
    /// Decodes the request as a job of `bytes` bytes. Returns `None` if more than `most` bytes would be
    /// copied.
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

/// Returns whether a model has BYTES inputs. Errors about the model are reported elsewhere.
fn takes_bytes(app: &App, model: ModelRef<'_>) -> bool {
    let metadata = app.service.model_metadata(model);
    metadata.is_ok_and(|metadata| {
        let mut inputs = metadata.inputs.iter();
        inputs.any(|input| input.datatype == DataType::Bytes)
    })
}

/// Returns whether the JSON may refer to shared memory. The parameter's name may contain escapes.
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

/// Encodes a response and compresses it as negotiated, off the reactor thread if that takes a long time.
async fn encode(
    app: &App,
    response: InferResponse,
    binary_outputs: BinaryOutputs,
    wanted: ResponsePreferences,
    lease: &Lease,
) -> Result<EncodedResponse, ServiceError> {
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
        return Ok(EncodedResponse::plain(body));
    };
    let bytes = body.len();
    let compressing = {
        let lease = lease.clone();
        move || compress(&lease, body, chosen)
    };
    run(&config.cpu, lease, bytes, compressing).await
}

/// Compresses a response. Each part is freed once it is compressed.
fn compress(
    lease: &Lease,
    body: EncodedPieces,
    encoding: ContentEncoding,
) -> Result<EncodedResponse, ServiceError> {
    let header_length = body.header_length();
    Ok(EncodedResponse {
        parts: deflate(lease, encoding, body.into_parts())?,
        header_length,
        encoding: Some(encoding),
    })
}

/// Runs work on `bytes` bytes, on the pool if the work is large.
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
