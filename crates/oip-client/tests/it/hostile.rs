//! Tests malicious and broken responses.

use std::io::Write;

use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use http_body::Frame;
use oip_client::{ErrorKind, GrpcClient, HttpClient, InferenceClient};
use oip_grpc::proto::{
    InferTensorContents, ModelInferResponse, ModelMetadataResponse, model_infer_response::InferOutputTensor,
    model_metadata_response::TensorMetadata,
};
use oip_types::{ErrorCode, ModelRef};

use crate::support::{
    Frames, ScriptedServer, Step, answer, data, grpc_answer, grpc_client, grpc_status, scripted_grpc,
    to_model, trailers,
};

const LIMIT: usize = 10_000;

fn limited(url: &str) -> HttpClient {
    HttpClient::builder(url)
        .max_answer_bytes(LIMIT)
        .accept_compressed(true)
        .build()
        .unwrap()
}

/// Returns a JSON body padded with blanks.
fn json_of(bytes: usize) -> Vec<u8> {
    let mut body = br#"{"model_name":"m","outputs":[]}"#.to_vec();
    body.resize(bytes, b' ');
    body
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

async fn infer(
    status: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> oip_client::Result<oip_types::InferResponse> {
    limited(&ScriptedServer::answering(status, headers, body).url)
        .infer(&to_model("m"))
        .await
}

#[tokio::test]
async fn answers_have_a_largest_size() {
    infer("200 OK", &[], &json_of(LIMIT)).await.unwrap();
    let too_large = infer("200 OK", &[], &json_of(LIMIT + 1)).await.unwrap_err();
    assert_eq!(too_large.kind(), ErrorKind::TooLarge);
    assert_eq!(
        too_large.message(),
        "the response is larger than 10000 bytes, the client's limit"
    );

    // This body has no length and no end.
    let mut endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    endless.extend_from_slice(
        &b"1000\r\n"
            .iter()
            .chain(&[b' '; 0x1000])
            .chain(b"\r\n")
            .copied()
            .collect::<Vec<_>>()
            .repeat(4),
    );
    let server = ScriptedServer::new(vec![Step::Send(endless)]);
    let error = limited(&server.url).infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);

    // No memory is allocated for lengths that are only claimed.
    let claim = b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n{".to_vec();
    let server = ScriptedServer::new(vec![Step::Send(claim)]);
    let error = server.client().infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);

    // Only the beginning of an error response is read.
    let error = infer("500 Internal Server Error", &[], &json_of(LIMIT + 1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
}

/// An error response is reduced to a message: a body of 100 MB is not read in full, and an endless one does
/// not block.
#[tokio::test]
async fn a_refusal_is_not_read_to_its_end() {
    let page = b"no entry ".repeat(8 << 10);
    let mut endless = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 100000000\r\n\r\n".to_vec();
    endless.extend_from_slice(&page);
    // The connection stays open, and the rest of the body never arrives.
    let server = ScriptedServer::new(vec![Step::Send(endless)]);
    let error = server.client().infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().starts_with("no entry no entry"), "{error}");
}

#[tokio::test]
async fn compressed_answers_have_the_same_limit_once_decompressed() {
    for (name, compress) in [("gzip", gzip as fn(&[u8]) -> Vec<u8>), ("deflate", zlib)] {
        let encoded = [("Content-Encoding", name)];
        infer("200 OK", &encoded, &compress(&json_of(LIMIT)))
            .await
            .unwrap();
        for size in [LIMIT + 1, 8 << 20] {
            let bomb = compress(&json_of(size));
            assert!(
                bomb.len() <= LIMIT,
                "it is not the size of what is sent that is judged"
            );
            let error = infer("200 OK", &encoded, &bomb).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
        }
        let mut damaged = compress(&json_of(LIMIT));
        for body in [
            damaged.split_off(damaged.len() / 2),
            damaged,
            b"{}".to_vec(),
            vec![],
        ] {
            let error = infer("200 OK", &encoded, &body).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        }
        let trailing = [compress(&json_of(100)), b"x".to_vec()].concat();
        assert_eq!(
            infer("200 OK", &encoded, &trailing).await.unwrap_err().kind(),
            ErrorKind::Protocol
        );
        // A compressed error response is read; a decompression bomb is not.
        let refusal = compress(br#"{"error":"squeezed"}"#);
        let error = infer("400 Bad Request", &encoded, &refusal).await.unwrap_err();
        assert_eq!(error.message(), "squeezed");
        let error = infer("400 Bad Request", &encoded, &compress(&vec![b'x'; 5 << 20]))
            .await
            .unwrap_err();
        assert_eq!(error.message(), "Bad Request");
    }
    let error = infer("200 OK", &[("Content-Encoding", "br")], b"x")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn binary_answers_that_lie() {
    let y = r#"{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}"#;
    let whole = [y.as_bytes(), &[0; 8]].concat();
    let length = y.len().to_string();
    let send = async |length: &str, body: &[u8]| {
        infer("200 OK", &[("Inference-Header-Content-Length", length)], body).await
    };
    send(&length, &whole).await.unwrap();
    let longer = [&whole[..], &[0]].concat();
    let huge = y.replace("[2]", "[4611686018427387904, 4]");
    for (length, body, message) in [
        (
            &*length,
            &whole[..whole.len() - 1],
            "output 'y': expected 8 bytes of binary data, found 7",
        ),
        (&length, &longer, "1 bytes of binary data are left over"),
        ("0", &whole, "Inference-Header-Content-Length"),
        ("-1", &whole, "Inference-Header-Content-Length"),
        ("99999", &whole, "expected a number of bytes from 0 to the body's"),
        ("3", &whole, "the response violates the protocol"),
        (&huge.len().to_string(), huge.as_bytes(), "output 'y': "),
    ] {
        let error = send(length, body).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.message().contains(message), "{error}");
    }
    // These bodies have deep nesting or wrong types.
    for body in [
        format!(r#"{{"model_name":"m","outputs":{}}}"#, "[".repeat(5000)),
        r#"{"model_name":"m","outputs":{}}"#.to_owned(),
        r#"{"model_name":"m","outputs":[{"name":"y","datatype":"fp32","shape":[1],"data":[1]}]}"#.to_owned(),
        r#"{"model_name":"m","outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":[300]}]}"#
            .to_owned(),
    ] {
        let error = infer("200 OK", &[], body.as_bytes()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    }
}

#[tokio::test]
async fn heads_that_are_no_http() {
    let many = (0..200)
        .map(|index| format!("h{index}: x\r\n"))
        .collect::<String>();
    for head in [
        "\0\0\0\0\0\0\0\0\0",
        "HTTP/1.1 abc\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
        &format!("HTTP/1.1 200 OK\r\n{many}\r\n"),
    ] {
        let server = ScriptedServer::new(vec![Step::Cut(head.as_bytes().to_vec())]);
        let error = server.client().infer(&to_model("m")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{head:?}: {error}");
    }
    let server = ScriptedServer::new(vec![Step::Cut(answer(
        "200 OK",
        &[("Content-Length", "3")],
        "[]",
    ))]);
    assert!(server.client().infer(&to_model("m")).await.is_err());
}

fn output(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferOutputTensor {
    InferOutputTensor {
        name: "y".into(),
        datatype: datatype.into(),
        shape: shape.into(),
        contents,
        ..Default::default()
    }
}

async fn grpc(
    frames: impl Fn() -> Frames + Clone + Send + Sync + 'static,
) -> oip_client::Result<oip_types::InferResponse> {
    let url = scripted_grpc(move |_, _, _| grpc_answer(frames()));
    let client = GrpcClient::builder(url)
        .max_answer_bytes(LIMIT)
        .accept_compressed(true)
        .build()
        .unwrap();
    client.infer(&to_model("m")).await
}

#[tokio::test]
async fn grpc_messages_that_lie() {
    let raw = |raw: &[&[u8]]| {
        raw.iter()
            .map(|raw| Bytes::copy_from_slice(raw))
            .collect::<Vec<_>>()
    };
    let fp32 = InferTensorContents {
        fp32_contents: vec![1.0],
        ..Default::default()
    };
    let good = |outputs, raw| ModelInferResponse {
        model_name: "m".into(),
        outputs,
        raw_output_contents: raw,
        ..Default::default()
    };
    for (message, expected) in [
        (good(vec![output("FP32", &[1], None)], raw(&[&[0; 4]])), None),
        (good(vec![output("FP32", &[1], Some(fp32.clone()))], vec![]), None),
        // Some servers set both raw and typed contents; the raw contents take precedence.
        (
            good(
                vec![output("FP32", &[1], Some(InferTensorContents::default()))],
                raw(&[&[0; 4]]),
            ),
            None,
        ),
        (
            good(vec![output("FP32", &[1], None)], raw(&[&[0; 3]])),
            Some("output 'y': expected 4 bytes for FP32[1], found 3"),
        ),
        (
            good(vec![output("FP32", &[1], None)], raw(&[&[0; 4], &[0; 4]])),
            Some("expected 1 raw_output_contents, one per output, found 2"),
        ),
        (
            good(vec![output("FP32", &[1], None)], vec![]),
            Some("output 'y': expected contents or raw_output_contents, found neither"),
        ),
        (
            good(vec![output("INT8", &[1], Some(fp32.clone()))], vec![]),
            Some("expected int_contents for INT8, found fp32_contents"),
        ),
        (
            good(vec![output("FP32", &[-1], Some(fp32.clone()))], vec![]),
            Some("negative dimension"),
        ),
        (
            good(vec![output("FP32", &[i64::MAX, 8], None)], raw(&[&[0; 4]])),
            Some("output 'y': "),
        ),
        (
            good(vec![output("COMPLEX", &[1], None)], raw(&[&[0; 4]])),
            Some("unknown datatype 'COMPLEX'"),
        ),
        (
            good(vec![output("BYTES", &[1], None)], raw(&[&[9, 0, 0, 0, 1]])),
            Some("BYTES element 0 is truncated"),
        ),
    ] {
        let result = grpc(move || vec![data(&message), trailers(&[("grpc-status", "0")])]).await;
        match (result, expected) {
            (Ok(response), None) => assert_eq!(response.outputs.len(), 1),
            (Err(error), Some(expected)) => {
                assert_eq!(error.kind(), ErrorKind::Protocol);
                assert!(error.message().contains(expected), "{error}");
            }
            (result, _) => panic!("{result:?}, not {expected:?}"),
        }
    }
}

#[tokio::test]
async fn grpc_frames_that_lie() {
    let frame = |flag: u8, length: u32, bytes: &[u8]| {
        let length = length.to_be_bytes();
        let frame: Vec<u8> = [&[flag][..], &length, bytes].concat();
        move || {
            vec![
                Ok(Frame::data(frame.clone().into())),
                trailers(&[("grpc-status", "0")]),
            ]
        }
    };
    // These messages are too large, as sent and after decompression.
    let error = grpc(frame(0, LIMIT as u32 + 1, &[0; 100])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    let error = grpc(frame(0, u32::MAX, &[0; 100])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    let bomb = gzip(&vec![0; 8 << 20]);
    let bomb_frame = [&[1][..], &(bomb.len() as u32).to_be_bytes(), &bomb].concat();
    let url = scripted_grpc(move |_, _, _| {
        let mut response = grpc_answer(vec![
            Ok(Frame::data(bomb_frame.clone().into())),
            trailers(&[("grpc-status", "0")]),
        ]);
        response
            .headers_mut()
            .insert("grpc-encoding", "gzip".parse().unwrap());
        response
    });
    let client = GrpcClient::builder(url)
        .max_answer_bytes(1 << 20)
        .accept_compressed(true)
        .build()
        .unwrap();
    let error = client.infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    // These frames have a wrong length, an unknown flag, or bytes that are not a message.
    for frames in [
        frame(0, 50, &[0; 10]),
        frame(7, 2, &[0; 2]),
        frame(1, 2, &[0; 2]),
        frame(0, 3, &[255; 3]),
    ] {
        let error = grpc(frames).await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Broken),
            "{error}"
        );
    }
}

/// A response that consists only of a status becomes an error with the matching code.
#[tokio::test]
async fn trailers_only() {
    for (code, expected) in [
        (3, Some(ErrorCode::InvalidArgument)),
        (5, Some(ErrorCode::NotFound)),
        (9, Some(ErrorCode::InvalidArgument)),
        (12, Some(ErrorCode::Unimplemented)),
        (13, Some(ErrorCode::Internal)),
        (2, Some(ErrorCode::Internal)),
        (7, Some(ErrorCode::PermissionDenied)),
        (16, Some(ErrorCode::Unauthenticated)),
    ] {
        let url = scripted_grpc(move |_, _, _| grpc_status(code, "its%20reason", &[]));
        let error = grpc_client(&url).infer(&to_model("m")).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.code(), error.message()),
            (ErrorKind::Refused, expected, "its reason")
        );
        assert_eq!(error.status(), Some(oip_client::Status::Grpc(code)));
    }
    let too_large = "Received message larger than max (5000000 vs. 4194304)";
    let url = scripted_grpc(move |_, _, _| grpc_status(8, too_large, &[]));
    let error = grpc_client(&url).infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TooLarge));
    assert!(
        error.to_string().ends_with("(gRPC RESOURCE_EXHAUSTED)"),
        "{error}"
    );
}

#[tokio::test]
async fn answers_that_are_no_grpc() {
    for (status, kind, code) in [
        (200, ErrorKind::Protocol, None),
        (404, ErrorKind::Protocol, None),
        (503, ErrorKind::Refused, Some(ErrorCode::Unavailable)),
    ] {
        let url = scripted_grpc(move |_, _, _| {
            let page = vec![Ok(Frame::data("<html>".into()))];
            http::Response::builder()
                .status(status)
                .header("content-type", "text/html")
                .body(page)
                .unwrap()
        });
        let client = GrpcClient::builder(url)
            .retry(oip_client::RetryPolicy::never())
            .build()
            .unwrap();
        let error = client.server_live().await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (kind, code), "{error}");
        assert!(
            error
                .message()
                .contains("expected application/grpc, found 'text/html' with HTTP "),
            "{error}"
        );
    }
}

#[tokio::test]
async fn metadata_that_is_none() {
    let message = ModelMetadataResponse {
        name: "m".into(),
        inputs: vec![TensorMetadata {
            name: "x".into(),
            datatype: "fp32".into(),
            shape: vec![-1],
        }],
        ..Default::default()
    };
    let url =
        scripted_grpc(move |_, _, _| grpc_answer(vec![data(&message), trailers(&[("grpc-status", "0")])]));
    let model = ModelRef::new("m", None).unwrap();
    let error = grpc_client(&url).model_metadata(model).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(
        error
            .message()
            .contains("'x': unknown datatype 'fp32' (did you mean 'FP32'?)"),
        "{error}"
    );
    let body = r#"{"name":"m","inputs":[{"name":"x","datatype":"fp32","shape":[-1]}]}"#;
    let server = ScriptedServer::answering("200 OK", &[], body);
    let http = server.client().model_metadata(model).await.unwrap_err();
    assert_eq!(http.message(), error.message());
}
