//! What stands on the wire: bytes that are not copied, and bytes that no gRPC client would send.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use oip_grpc::{GrpcConfig, GrpcService, proto::ModelInferRequest, service};
use oip_service::{BoxFuture, InferenceService, Readiness, RequestContext, testing::TestService};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};
use prost::Message;
use tonic::codegen::Service;

use crate::support::{good, input};

/// Notes where the inputs' bytes are.
#[derive(Default)]
struct Recorder {
    inner: TestService,
    addresses: Mutex<Vec<usize>>,
}

impl InferenceService for Recorder {
    fn server_metadata(&self) -> ServerMetadata {
        self.inner.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.inner.readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.inner.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        let addresses = request
            .inputs
            .iter()
            .map(|input| input.value.raw().as_ptr() as usize);
        self.addresses.lock().unwrap().extend(addresses);
        self.inner.infer(request, cx)
    }
}

/// A message in gRPC's frame.
fn framed(flag: u8, message: &[u8]) -> Bytes {
    [&[flag][..], &(message.len() as u32).to_be_bytes(), message]
        .concat()
        .into()
}

/// Sends bytes to a path; returns the HTTP status and the gRPC code.
async fn post(path: &str, headers: &[(&str, &str)], body: Bytes) -> (StatusCode, Option<i32>) {
    let request = Request::post(path).body(Full::new(body)).unwrap();
    send(
        service(Arc::new(TestService::default()), GrpcConfig::default()),
        headers,
        request,
    )
    .await
}

async fn send(
    mut service: GrpcService,
    headers: &[(&str, &str)],
    mut request: Request<Full<Bytes>>,
) -> (StatusCode, Option<i32>) {
    for (name, value) in headers {
        request.headers_mut().insert(
            http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
            value.parse().unwrap(),
        );
    }
    let response = service.call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let code = head
        .headers
        .get("grpc-status")
        .or_else(|| collected.trailers()?.get("grpc-status"));
    (
        head.status,
        code.map(|code| code.to_str().unwrap().parse().unwrap()),
    )
}

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// Raw inputs are slices of one message: they lie as far apart in memory as on the wire.
#[tokio::test]
async fn raw_inputs_are_slices_of_the_message() {
    let (a, b) = (vec![1u8; 800_000], vec![2u8; 8]);
    let message = ModelInferRequest {
        model_name: "matrix".into(),
        inputs: vec![input("a", "FP32", &[100_000, 2]), input("b", "INT64", &[1])],
        raw_input_contents: vec![a.clone().into(), b.into()],
        ..Default::default()
    };
    let encoded = message.encode_to_vec();
    let recorder = Arc::new(Recorder::default());
    let request = Request::post(INFER).body(Full::new(framed(0, &encoded))).unwrap();
    let status = send(service(recorder.clone(), GrpcConfig::default()), &[GRPC], request).await;
    assert_eq!(status, (StatusCode::OK, Some(0)));
    let addresses = recorder.addresses.lock().unwrap();
    // Between the two stand a tag and a length of one byte each.
    assert_eq!(addresses[1] - addresses[0], a.len() + 2, "copied");
}

/// GR-12, GR-14, GR-15: frames and messages that are broken.
#[tokio::test]
async fn gr_14_broken_messages() {
    let good = good().encode_to_vec();
    assert_eq!(
        post(INFER, &[GRPC], framed(0, &good)).await,
        (StatusCode::OK, Some(0))
    );
    let internal_or_invalid = [Some(3), Some(13)];
    let nested = [0x2b; 101];
    for message in [
        &good[..good.len() - 1],
        &[0x0f],
        &[0xff; 11],
        &[0x0a, 0x7f],
        &[0x0a, 0x01, 0xff],
        &nested,
    ] {
        let (status, code) = post(INFER, &[GRPC], framed(0, message)).await;
        assert!(
            status == StatusCode::OK && internal_or_invalid.contains(&code),
            "{message:?}: {code:?}"
        );
    }
    for (flag, expected) in [(1, 13), (2, 13)] {
        assert_eq!(post(INFER, &[GRPC], framed(flag, &good)).await.1, Some(expected));
    }
    let snappy = [GRPC, ("grpc-encoding", "snappy")];
    assert_eq!(post(INFER, &snappy, framed(1, &good)).await.1, Some(12));
    // A frame that ends too early.
    let cut = framed(0, &good).slice(..10);
    assert!(matches!(post(INFER, &[GRPC], cut).await.1, Some(code) if code != 0));
}

/// GR-13: a message that is small until it is decompressed.
#[tokio::test]
async fn gr_13_compressed_messages() {
    let gzip = |data: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        std::io::Write::write_all(&mut encoder, data).unwrap();
        encoder.finish().unwrap()
    };
    let headers = [GRPC, ("grpc-encoding", "gzip")];
    assert_eq!(
        post(INFER, &headers, framed(1, &gzip(&good().encode_to_vec())))
            .await
            .1,
        Some(0)
    );
    let bomb = gzip(&vec![0; (64 << 20) + 1]);
    assert!(bomb.len() < 100_000);
    assert_eq!(post(INFER, &headers, framed(1, &bomb)).await.1, Some(8));
}

/// GR-16: requests of no gRPC client, and calls that do not exist.
#[tokio::test]
async fn gr_16_what_is_no_call() {
    let frame = framed(0, &good().encode_to_vec());
    assert_eq!(
        post("/inference.GRPCInferenceService/Nope", &[GRPC], frame.clone())
            .await
            .1,
        Some(12)
    );
    assert_eq!(post("/nope.Nope/Nope", &[GRPC], frame.clone()).await.1, Some(12));
    for content_type in ["application/json", "text/plain"] {
        let (status, _) = post(INFER, &[("content-type", content_type)], frame.clone()).await;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    assert_eq!(
        post(INFER, &[("content-type", "application/grpc+proto")], frame)
            .await
            .1,
        Some(0)
    );
    let get = Request::get(INFER).body(Full::default()).unwrap();
    let (status, _) = send(
        service(Arc::new(TestService::default()), GrpcConfig::default()),
        &[GRPC],
        get,
    )
    .await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}
