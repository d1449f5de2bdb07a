//! Tests that the memory of calls is charged to the budget before allocation, and released after the last
//! byte of the response.

use std::{
    convert::Infallible,
    io::Write,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use oip_grpc::{
    GrpcConfig, GrpcOutput,
    proto::{
        InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
        RepositoryModelLoadRequest,
    },
    service,
};
use oip_model::BoxFuture;
use oip_resources::ByteBudget;
use oip_service::{InferenceService, Readiness, RequestContext, Statistics, testing::TestService};
use oip_types::{
    DataType, InferRequest, InferResponse, ModelMetadata, ModelRef, ModelStatistics, ServerMetadata,
    ServiceError, TensorMetadata,
};
use prost::Message;
use tonic::{Code, codegen::Service};

use crate::support::{Recorder, client_with, floats, raw_x, typed_x};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

fn framed(flag: u8, message: &[u8]) -> Bytes {
    [&[flag][..], &(message.len() as u32).to_be_bytes(), message]
        .concat()
        .into()
}

fn request(body: Bytes) -> Request<Full<Bytes>> {
    Request::post(INFER)
        .header("content-type", "application/grpc")
        .body(Full::new(body))
        .unwrap()
}

async fn call(config: GrpcConfig, request: Request<Full<Bytes>>) -> Response<tonic::body::Body> {
    let service = service(Arc::new(TestService::default()), config);
    service.clone().call(request).await.unwrap()
}

fn status(headers: &HeaderMap) -> (&str, String) {
    let field = |name| headers.get(name).map_or("", |value| value.to_str().unwrap());
    (field("grpc-status"), field("grpc-message").replace("%20", " "))
}

fn with_budget(bytes: u64) -> (GrpcConfig, ByteBudget) {
    let budget = ByteBudget::new(bytes);
    let config = GrpcConfig::default().with(|config| config.budget = budget.clone());
    (config, budget)
}

/// Large output tensors are sent without copying them into frames.
#[tokio::test]
async fn outputs_are_not_copied() {
    let recorder = Arc::new(Recorder::default());
    let values = vec![0.5; 100_000];
    let message = floats("identity_fp32", &values).encode_to_vec();
    let mut service = service(recorder.clone(), GrpcConfig::default());
    let response = service.call(request(framed(0, &message))).await.unwrap();
    let mut body = response.into_body();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        frames.extend(frame.unwrap().into_data());
    }
    let input = recorder.seen.lock().unwrap()[0].addresses[0];
    let output = frames.iter().find(|frame| frame.len() == 400_000).unwrap();
    assert_eq!(output.as_ptr() as usize, input, "copied");
    let answer = frames.concat();
    let response = ModelInferResponse::decode(&answer[5..]).unwrap();
    assert_eq!(response.raw_output_contents[0], output);
}

/// A response counts toward the budget until it is sent, however slowly its client reads.
#[tokio::test]
async fn answers_count_until_they_are_gone() {
    for output in [GrpcOutput::Raw, GrpcOutput::Typed] {
        let (config, budget) = with_budget(8 << 20);
        let message = raw_x("identity_int64", "INT64", &[100_000], &vec![0xff; 800_000]).encode_to_vec();
        let response = call(
            config.with(|config| config.output = output),
            request(framed(0, &message)),
        )
        .await;
        assert_eq!(response.headers().get("grpc-status"), None);
        let mut body = response.into_body();
        // In typed form each element takes ten bytes, and the input is already released.
        let held = if output == GrpcOutput::Raw {
            800_000
        } else {
            1_000_000
        };
        assert!(
            (held..held + 300_000).contains(&budget.used()),
            "{}",
            budget.used()
        );
        let first = body.frame().await.unwrap().unwrap();
        drop(body);
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}

/// A service with large responses to small requests.
struct LargeResponses;

impl InferenceService for LargeResponses {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("test", "1")
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn model_metadata(&self, _: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        let input = TensorMetadata::new("x".repeat(300), DataType::FP32, &[-1]);
        Ok(Arc::new(ModelMetadata::new(
            "m",
            "test_test",
            vec![input; 1000],
            Vec::new(),
        )))
    }

    fn infer(
        &self,
        _: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async { Err(ServiceError::invalid("it only describes itself")) })
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        Some(self)
    }
}

impl Statistics for LargeResponses {
    fn model_statistics(&self, _: Option<ModelRef<'_>>) -> Result<Vec<ModelStatistics>, ServiceError> {
        let statistics = ModelStatistics {
            name: "m".repeat(300),
            ..ModelStatistics::default()
        };
        Ok(vec![statistics; 1000])
    }
}

/// Responses of every call count toward the budget while the client does not read them. A response that
/// exceeds the budget is refused.
#[tokio::test]
async fn answers_of_all_calls_count_until_they_are_gone() {
    const BYTES: u64 = 300_000;
    let (config, budget) = with_budget(1 << 20);
    let service = service(Arc::new(LargeResponses), config);
    let ask = |path: &'static str, message: &[u8]| {
        let mut request = request(framed(0, message));
        *request.uri_mut() = path.parse().unwrap();
        service.clone().call(request)
    };
    let metadata = ModelMetadataRequest {
        name: "m".to_owned(),
        version: String::new(),
    };
    let metadata = metadata.encode_to_vec();
    // The first response is built on a connection's thread, the second on the pool.
    for (path, message) in [
        ("/inference.GRPCInferenceService/ModelMetadata", &metadata[..]),
        ("/inference.GRPCInferenceService/ModelStatistics", &[]),
    ] {
        let first = ask(path, message).await.unwrap();
        assert_eq!(first.headers().get("grpc-status"), None, "{path}");
        let once = budget.used();
        assert!((BYTES..2 * BYTES).contains(&once), "{path}: {once}");
        let mut unread = Vec::new();
        let refused = loop {
            let response = ask(path, message).await.unwrap();
            if response.headers().contains_key("grpc-status") {
                break response;
            }
            unread.push(response);
            assert_eq!(budget.used(), once * (1 + unread.len() as u64));
        };
        let (code, message) = status(refused.headers());
        assert_eq!(code, "8");
        assert!(
            message.starts_with("other requests use the server's"),
            "{message}"
        );
        assert!(refused.headers().contains_key("grpc-retry-pushback-ms"));
        assert!(budget.used() > (1 << 20) - (1 << 16) - once);
        // Small responses need no budget.
        let rest: Vec<_> = std::iter::from_fn(|| budget.take(1 << 10).ok()).collect();
        let live = ask("/inference.GRPCInferenceService/ServerReady", &[])
            .await
            .unwrap();
        assert_eq!(live.headers().get("grpc-status"), None);
        drop((live, refused, rest, unread));
        assert_eq!(budget.used(), once);

        // A frame that was taken from the body counts toward the budget until it is dropped.
        let mut body = first.into_body();
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(status(&trailers).0, "0");
        drop(body);
        assert_eq!(budget.used(), once);
        drop(frame);
        assert_eq!(budget.used(), 0, "{path}");
    }
}

/// A body that never yields its message.
struct SilentBody;

impl Body for SilentBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Metadata is limited like HTTP headers, and counts toward the budget if it is larger than 8 KiB.
#[tokio::test]
async fn metadata_has_a_limit_and_counts() {
    let (config, budget) = with_budget(64 << 10);
    let service = service(Arc::new(TestService::default()), config);
    // Inference drops its metadata before the message arrives; other calls keep it.
    for (path, held) in [
        (INFER, 0),
        ("/inference.GRPCInferenceService/ServerLive", 32 << 10),
    ] {
        let ask = |bytes: usize| {
            let mut request = request(Bytes::new());
            *request.uri_mut() = path.parse().unwrap();
            let value = "a".repeat(bytes - "content-typeapplication/grpclarge".len() - 8);
            request.headers_mut().insert("large", value.parse().unwrap());
            service.clone().call(request.map(|_| SilentBody))
        };
        let mut waiting = ask(32 << 10);
        let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(budget.used(), held, "{path}");
        let refused = ask((32 << 10) + 1).await.unwrap();
        let message = "the call's metadata has 32769 bytes, the limit is 32768".to_owned();
        assert_eq!(status(refused.headers()), ("8", message));
        drop(waiting);
        assert_eq!(budget.used(), 0, "{path}");
    }
}

/// Encodes typed responses of every datatype in many buffers.
#[tokio::test]
async fn large_typed_contents() {
    const COUNT: usize = 100_000;
    let empty = InferTensorContents::default;
    let numbers = || (0..COUNT).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for (datatype, contents) in [
        (
            "BOOL",
            InferTensorContents {
                bool_contents: numbers().map(|n| n % 3 == 0).collect(),
                ..empty()
            },
        ),
        (
            "INT8",
            InferTensorContents {
                int_contents: numbers().map(|n| i32::from(n as i8)).collect(),
                ..empty()
            },
        ),
        (
            "INT16",
            InferTensorContents {
                int_contents: numbers().map(|n| i32::from(n as i16)).collect(),
                ..empty()
            },
        ),
        (
            "INT32",
            InferTensorContents {
                int_contents: numbers().map(|n| n as i32).collect(),
                ..empty()
            },
        ),
        (
            "INT64",
            InferTensorContents {
                int64_contents: numbers().map(|n| n as i64 >> (n % 64)).collect(),
                ..empty()
            },
        ),
        (
            "UINT8",
            InferTensorContents {
                uint_contents: numbers().map(|n| u32::from(n as u8)).collect(),
                ..empty()
            },
        ),
        (
            "UINT16",
            InferTensorContents {
                uint_contents: numbers().map(|n| u32::from(n as u16)).collect(),
                ..empty()
            },
        ),
        (
            "UINT32",
            InferTensorContents {
                uint_contents: numbers().map(|n| n as u32).collect(),
                ..empty()
            },
        ),
        (
            "UINT64",
            InferTensorContents {
                uint64_contents: numbers().map(|n| n as u64 >> (n % 64)).collect(),
                ..empty()
            },
        ),
        (
            "FP32",
            InferTensorContents {
                fp32_contents: numbers().map(|n| n as f32).collect(),
                ..empty()
            },
        ),
        (
            "FP64",
            InferTensorContents {
                fp64_contents: numbers().map(|n| n as f64).collect(),
                ..empty()
            },
        ),
        (
            "BYTES",
            InferTensorContents {
                bytes_contents: numbers()
                    .map(|n| vec![n as u8; n % 9 + if n % 5000 == 0 { 9000 } else { 0 }].into())
                    .collect(),
                ..empty()
            },
        ),
    ] {
        let (config, budget) = with_budget(64 << 20);
        let (mut client, _) = client_with(config);
        let model = format!("identity_{}", datatype.to_lowercase());
        let request = typed_x(&model, datatype, &[COUNT as i64], contents.clone());
        let response = client.model_infer(request).await.unwrap().into_inner();
        assert_eq!(
            response.outputs[0].contents.as_ref(),
            Some(&contents),
            "{datatype}"
        );
        assert_eq!(budget.used(), 0, "{datatype}");
    }
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// A message of 32 MiB with 16 million empty inputs is refused at the limit, compressed or not.
#[tokio::test]
async fn millions_of_inputs_are_refused() {
    let (config, budget) = with_budget(128 << 20);
    let message = [0x2a, 0].repeat(32 << 20 >> 1);
    for (flag, body) in [(0, message.clone()), (1, gzip(&message))] {
        let mut request = request(framed(flag, &body));
        if flag == 1 {
            request
                .headers_mut()
                .insert("grpc-encoding", "gzip".parse().unwrap());
        }
        let response = call(config.clone(), request).await;
        let expected = "too many inputs and outputs: the limit is 256, found 257 or more";
        assert_eq!(status(response.headers()), ("3", expected.to_owned()));
        drop(response);
        assert_eq!(budget.used(), 0);
    }
}

/// Requests that never fit and those that do not fit now get the same status code; only the latter get a
/// retry delay.
#[tokio::test]
async fn only_what_may_fit_later_is_to_be_tried_again() {
    let (config, budget) = with_budget(100_000);
    let message = raw_x("identity_uint8", "UINT8", &[60_000], &vec![1; 60_000]).encode_to_vec();
    let taken = budget.take(50_000).unwrap();
    let response = call(config.clone(), request(framed(0, &message))).await;
    assert_eq!(status(response.headers()).0, "8");
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1000");
    drop((response, taken));
    let message = raw_x("identity_uint8", "UINT8", &[200_000], &vec![1; 200_000]).encode_to_vec();
    let response = call(config, request(framed(0, &message))).await;
    assert_eq!(status(response.headers()).0, "8");
    assert_eq!(response.headers().get("grpc-retry-pushback-ms"), None);
    drop(response);
    assert_eq!(budget.used(), 0);
}

/// Messages of other calls are small, and count toward the budget with their decoded size.
#[tokio::test]
async fn messages_of_other_calls_are_small() {
    let (config, budget) = with_budget(1 << 20);
    let (mut client, _) = client_with(config);
    let load = |bytes| RepositoryModelLoadRequest {
        model_name: "x".repeat(bytes),
        ..Default::default()
    };
    let code = |answer: Result<_, tonic::Status>| answer.err().map(|status| status.code());
    let too_large = client.repository_model_load(load(2 << 20)).await;
    assert_eq!(code(too_large), Some(Code::ResourceExhausted));
    let beyond_the_budget = client.repository_model_load(load(100_000)).await;
    assert_eq!(code(beyond_the_budget), Some(Code::ResourceExhausted));
    let small = client.repository_model_load(load(1000)).await;
    assert_eq!(code(small), Some(Code::InvalidArgument));
    assert_eq!(budget.used(), 0);
}

/// A unary call has exactly one message.
#[tokio::test]
async fn a_call_has_one_message() {
    let good = framed(0, &floats("identity_fp32", &[1.0]).encode_to_vec());
    for (body, expected) in [
        (Bytes::new(), "Missing request message."),
        (
            [&good[..], &good].concat().into(),
            "expected one request message, found more",
        ),
    ] {
        let response = call(GrpcConfig::default(), request(body)).await;
        assert_eq!(status(response.headers()), ("13", expected.to_owned()));
    }
    let mut unknown = request(good);
    unknown
        .headers_mut()
        .insert("grpc-encoding", "br".parse().unwrap());
    let response = call(GrpcConfig::default(), unknown).await;
    assert_eq!(
        response.headers()["grpc-accept-encoding"],
        "gzip,deflate,identity"
    );
}

/// A large request is decoded on the pool, does not delay other requests, and gives the same response.
#[tokio::test]
async fn large_requests_of_many_small_parts() {
    let message = ModelInferRequest {
        model_name: "identity_bytes".into(),
        ..raw_x(
            "identity_bytes",
            "BYTES",
            &[100_000],
            &[1, 0, 0, 0, 7].repeat(100_000),
        )
    };
    let (config, budget) = with_budget(8 << 20);
    let (mut client, _) = client_with(config);
    let response = client.model_infer(message.clone()).await.unwrap().into_inner();
    assert_eq!(response.raw_output_contents, message.raw_input_contents);
    assert_eq!(budget.used(), 0);
}
