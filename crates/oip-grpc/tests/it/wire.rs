//! Tests zero copy on the wire, and invalid bytes that no gRPC client would send.

use std::sync::Arc;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use oip_grpc::{GrpcConfig, GrpcService, proto::ModelInferRequest, service};
use oip_service::testing::TestService;
use prost::Message;
use tonic::codegen::Service;

use crate::support::{Recorder, good, input};

/// Frames a message for gRPC.
fn framed(flag: u8, message: &[u8]) -> Bytes {
    [&[flag][..], &(message.len() as u32).to_be_bytes(), message]
        .concat()
        .into()
}

/// A response: HTTP status, gRPC code and message.
type Reply = (StatusCode, Option<i32>, String);

/// Sends bytes to a path, and returns the reply.
async fn post(path: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
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
) -> Reply {
    for (name, value) in headers {
        request.headers_mut().insert(
            http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
            value.parse().unwrap(),
        );
    }
    let response = service.call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let field = |name: &str| {
        let value = head.headers.get(name).or_else(|| collected.trailers()?.get(name));
        let text = |value: &str| value.replace("%20", " ").replace("%60", "`");
        value.map(|value| text(value.to_str().unwrap()))
    };
    (
        head.status,
        field("grpc-status").map(|code| code.parse().unwrap()),
        field("grpc-message").unwrap_or_default(),
    )
}

fn ok(code: i32, message: &str) -> Reply {
    (StatusCode::OK, Some(code), message.to_owned())
}

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// Raw inputs are slices of one message, so their distance in memory equals their distance in the message.
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
    assert_eq!(status, ok(0, ""));
    let seen = recorder.seen.lock().unwrap();
    // A tag and a length of one byte each lie between the two inputs.
    let [first, second] = seen[0].addresses[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(second - first, a.len() + 2, "copied");
}

/// Rejects frames whose compression is unknown or contradicts the headers.
#[tokio::test]
async fn compression_flags() {
    let good = good().encode_to_vec();
    assert_eq!(post(INFER, &[GRPC], framed(0, &good)).await, ok(0, ""));
    let no_encoding =
        "protocol error: received message with compressed-flag but no grpc-encoding was specified";
    assert_eq!(post(INFER, &[GRPC], framed(1, &good)).await, ok(13, no_encoding));
    let flag = "protocol error: received message with invalid compression flag: 2 (valid flags are 0 and 1), while \
                sending request";
    assert_eq!(post(INFER, &[GRPC], framed(2, &good)).await, ok(13, flag));
    let snappy = [GRPC, ("grpc-encoding", "snappy")];
    let encoding = "Content is compressed with `snappy` which isn't supported";
    assert_eq!(post(INFER, &snappy, framed(1, &good)).await, ok(12, encoding));
    let gzip = [GRPC, ("grpc-encoding", "gzip")];
    let (_, code, _) = post(INFER, &gzip, framed(1, &good)).await;
    assert_eq!(code, Some(13), "what is no gzip");
}

/// A decompression bomb is rejected.
#[tokio::test]
async fn compressed_messages() {
    let gzip = |data: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        std::io::Write::write_all(&mut encoder, data).unwrap();
        encoder.finish().unwrap()
    };
    let headers = [GRPC, ("grpc-encoding", "gzip")];
    let good = framed(1, &gzip(&good().encode_to_vec()));
    assert_eq!(post(INFER, &headers, good).await, ok(0, ""));
    let bomb = gzip(&vec![0; (64 << 20) + 1]);
    assert!(bomb.len() < 100_000);
    let message = "Error decompressing: size limit, of 67108864 bytes, exceeded while decompressing message";
    assert_eq!(post(INFER, &headers, framed(1, &bomb)).await, ok(8, message));
}

/// Rejects messages that are not protobuf.
#[tokio::test]
async fn broken_messages() {
    let good = good().encode_to_vec();
    // The message contains nested groups in an unknown field.
    let nested = [0x7b; 101];
    for (message, expected) in [
        (
            &good[..good.len() - 1],
            "failed to decode Protobuf message: ModelInferRequest.raw_input_contents: buffer underflow",
        ),
        // The key has an invalid wire type.
        (
            &[0x0f],
            "failed to decode Protobuf message: invalid wire type value: 7",
        ),
        // A varint has eleven bytes.
        (&[0xff; 11], "failed to decode Protobuf message: invalid varint"),
        // The length points beyond the end of the message.
        (
            &[0x0a, 0x7f],
            "failed to decode Protobuf message: ModelInferRequest.model_name: buffer underflow",
        ),
        (
            &nested,
            "failed to decode Protobuf message: recursion limit reached",
        ),
    ] {
        assert_eq!(post(INFER, &[GRPC], framed(0, message)).await, ok(13, expected));
    }
    // The frame is truncated.
    let cut = framed(0, &good).slice(..10);
    assert_eq!(
        post(INFER, &[GRPC], cut).await,
        ok(13, "Unexpected EOF decoding stream.")
    );
}

/// Rejects strings that are not UTF-8.
#[tokio::test]
async fn names_that_are_not_utf8() {
    let message = framed(0, &[0x0a, 0x01, 0xff]);
    assert_eq!(
        post(INFER, &[GRPC], message).await,
        ok(
            13,
            "failed to decode Protobuf message: ModelInferRequest.model_name: invalid string value: data is not UTF-8 encoded"
        )
    );
}

/// Rejects requests that are not gRPC, and unknown methods.
#[tokio::test]
async fn what_is_no_call() {
    let frame = framed(0, &good().encode_to_vec());
    for path in ["/inference.GRPCInferenceService/Nope", "/nope.Nope/Nope", "/"] {
        assert_eq!(post(path, &[GRPC], frame.clone()).await, ok(12, ""), "{path}");
    }
    for content_type in ["application/json", "text/plain"] {
        let answer = post(INFER, &[("content-type", content_type)], frame.clone()).await;
        assert_eq!(answer, (StatusCode::UNSUPPORTED_MEDIA_TYPE, None, String::new()));
    }
    let proto = [("content-type", "application/grpc+proto")];
    assert_eq!(post(INFER, &proto, frame).await, ok(0, ""));
    let get = Request::get(INFER).body(Full::default()).unwrap();
    let service = service(Arc::new(TestService::default()), GrpcConfig::default());
    let answer = send(service, &[GRPC], get).await;
    assert_eq!(answer, (StatusCode::METHOD_NOT_ALLOWED, None, String::new()));
}
