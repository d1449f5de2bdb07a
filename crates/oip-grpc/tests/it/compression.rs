//! Tests message compression in both directions.

use std::{io::Write, sync::Arc};

use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use http::Request;
use http_body_util::{BodyExt, Full};
use oip_grpc::{
    GrpcConfig,
    proto::{ModelInferRequest, ModelMetadataRequest},
    service,
};
use oip_resources::ByteBudget;
use oip_service::testing::TestService;
use prost::Message;
use tonic::{Code, codec::CompressionEncoding, codegen::Service};

use crate::support::{client_with, floats};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const METADATA: &str = "/inference.GRPCInferenceService/ModelMetadata";

fn compressed(encoding: &str, message: &[u8]) -> Vec<u8> {
    let level = Compression::default();
    match encoding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            encoder.write_all(message).unwrap();
            encoder.finish().unwrap()
        }
        _ => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(message).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// Returns the encoding of the response to a request with the headers `headers`, if the response is
/// compressed.
async fn answer_encoding(
    path: &str,
    encoding: Option<&str>,
    accepted: &str,
    message: &[u8],
) -> Option<String> {
    let mut call = service(Arc::new(TestService::default()), GrpcConfig::default());
    let (flag, body) = match encoding {
        Some(encoding) => (1, compressed(encoding, message)),
        None => (0, message.to_vec()),
    };
    let frame: Bytes = [&[flag][..], &(body.len() as u32).to_be_bytes(), &body]
        .concat()
        .into();
    let mut request = Request::post(path)
        .header("content-type", "application/grpc")
        .header("grpc-accept-encoding", accepted);
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let response = call.call(request.body(Full::new(frame)).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    let body = body.to_bytes();
    let encoding = head
        .headers
        .get("grpc-encoding")
        .map(|encoding| encoding.to_str().unwrap().to_owned());
    // The message's flag determines whether it is compressed; the header may be present for an uncompressed
    // message.
    (body[0] == 1).then(|| encoding.unwrap())
}

/// Clients that compress requests get compressed responses if compression pays off; other clients never do.
#[tokio::test]
async fn answers_are_compressed_as_requests_are() {
    let of = |values: usize| floats("identity_fp32", &vec![0.5; values]).encode_to_vec();
    let all = "identity, deflate, gzip";
    for (path, encoding, accepted, message, expected) in [
        (INFER, Some("gzip"), all, of(1000), Some("gzip")),
        (INFER, Some("deflate"), all, of(1000), Some("deflate")),
        // Every client based on the C core declares these encodings.
        (INFER, None, all, of(1000), None),
        (INFER, Some("gzip"), "deflate", of(1000), None),
        (INFER, Some("gzip"), "identity", of(1000), None),
        // These responses are too small to compress, or too large.
        (INFER, Some("gzip"), all, of(10), None),
        (INFER, Some("gzip"), all, of(2 << 20), None),
        (METADATA, Some("gzip"), all, metadata(), None),
    ] {
        let found = answer_encoding(path, encoding, accepted, &message).await;
        assert_eq!(
            found.as_deref(),
            expected,
            "{path} {encoding:?} {accepted} {}",
            message.len()
        );
    }
}

fn metadata() -> Vec<u8> {
    let name = "matrix".to_owned();
    let version = String::new();
    ModelMetadataRequest { name, version }.encode_to_vec()
}

/// tonic's client can read responses that are compressed like its requests.
#[tokio::test]
async fn a_client_reads_what_it_asked_for() {
    let request: ModelInferRequest = floats("identity_fp32", &vec![0.25; 10_000]);
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let client = client_with(GrpcConfig::default()).0;
        let mut client = client.send_compressed(encoding).accept_compressed(encoding);
        let response = client.model_infer(request.clone()).await.unwrap().into_inner();
        assert_eq!(response.raw_output_contents, request.raw_input_contents);
    }
}

/// A compressed message counts toward the budget with its decompressed size.
#[tokio::test]
async fn decompressed_messages_count() {
    let budget = ByteBudget::new(20_000);
    let config = GrpcConfig::default().with(|config| config.budget = budget.clone());
    let client = client_with(config).0;
    let mut client = client.send_compressed(CompressionEncoding::Gzip);
    let status = client
        .model_infer(floats("identity_fp32", &vec![0.0; 6000]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    client
        .model_infer(floats("identity_fp32", &vec![0.0; 4000]))
        .await
        .unwrap();
    assert_eq!(budget.used(), 0, "bytes were not given back");
}
