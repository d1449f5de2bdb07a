//! Tests bodies in every form (JSON, binary, compressed, chunked), and how often they are copied.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::Write,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use http_body::Frame;
use oip_http::HttpConfig;
use oip_resources::{ByteBudget, TimeLimits};
use oip_service::testing::{datatypes, identity};
use oip_types::{RequestLimits, rest::NonFinite};

use crate::support::{app, app_with, call, infer, infer_binary, infer_with, x};

/// A body in chunks, without a declared length.
struct Pieces(VecDeque<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

/// A body that never yields data.
struct StalledBody;

impl http_body::Body for StalledBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// An endless body.
struct EndlessBody;

impl http_body::Body for EndlessBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b' '; 4096])))))
    }
}

fn in_pieces(body: &[u8], size: usize) -> Body {
    Body::new(Pieces(body.chunks(size).map(Bytes::copy_from_slice).collect()))
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn binary_x(size: usize, binary_output: bool) -> String {
    format!(
        r#"{{"id":"1","parameters":{{"binary_data_output":{binary_output}}},"inputs":[{{"name":"x","datatype":"UINT8","shape":[{size}],"parameters":{{"binary_data_size":{size}}}}}]}}"#
    )
}

/// A tensor's bytes are never copied between request and response if the body arrives in one piece.
#[tokio::test]
async fn a_binary_tensor_travels_through_without_a_copy() {
    let json = binary_x(1 << 20, true);
    let body = Bytes::from([json.as_bytes(), &vec![7; 1 << 20]].concat());
    let length = json.len().to_string();
    let headers = [("inference-header-content-length", length.as_str())];
    let answer = infer_with(&app(), "identity_uint8", &headers, body.clone().into()).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let [header, tensor] = &answer.frames[..] else {
        panic!("{} frames", answer.frames.len())
    };
    assert_eq!(
        answer.header("inference-header-content-length"),
        Some(&*header.len().to_string())
    );
    assert_eq!(
        header,
        r#"{"id":"1","model_name":"identity_uint8","outputs":[{"name":"y","datatype":"UINT8","shape":[1048576],"parameters":{"binary_data_size":1048576}}]}"#
    );
    assert_eq!(tensor.as_ptr(), body[json.len()..].as_ptr(), "copied");
    assert_eq!(tensor.len(), 1 << 20);
}

/// A tensor whose body arrives in several frames is aligned, regardless of the length of the JSON before it.
#[tokio::test]
async fn a_binary_tensor_that_is_joined_begins_at_an_aligned_place() {
    let app = app();
    for spaces in 0..17 {
        let json = binary_x(200_000, true) + &" ".repeat(spaces);
        let tensor: Vec<u8> = (0..200_000).map(|byte| byte as u8).collect();
        let body = [json.as_bytes(), &tensor].concat();
        let (length, whole) = (json.len().to_string(), body.len().to_string());
        for (size, announced) in [(30_000, true), (100, true), (70_000, false)] {
            let mut headers = vec![("inference-header-content-length", length.as_str())];
            headers.extend(announced.then_some(("content-length", whole.as_str())));
            let answer = infer_with(&app, "identity_uint8", &headers, in_pieces(&body, size)).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
            assert_eq!(answer.frames[1], tensor);
            assert_eq!(answer.frames[1].as_ptr().addr() % 16, 0, "{spaces} {size}");
        }
    }
}

#[tokio::test]
async fn binary_requests_of_every_datatype() {
    let app = app();
    for datatype in datatypes() {
        let raw: Vec<u8> = match datatype.dtype() {
            Some(dtype) => (0..3 * dtype.size()).map(|byte| byte as u8 % 2).collect(),
            None => b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0\xff".to_vec(),
        };
        let size = raw.len();
        let json = format!(
            r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[3],"parameters":{{"binary_data_size":{size}}}}}],"outputs":[{{"name":"y","parameters":{{"binary_data":true}}}}]}}"#
        );
        let answer = infer_binary(&app, &identity(datatype), &json, &raw).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert_eq!(answer.frames[1], raw, "{datatype}");
    }
}

#[tokio::test]
async fn json_requests_of_every_datatype() {
    let app = app();
    for datatype in datatypes() {
        let data = match datatype.name() {
            "BOOL" => "[true,false]",
            "BYTES" => r#"["a\n","é"]"#,
            "FP16" | "BF16" | "FP32" | "FP64" => "[1.5,-2.0]",
            "UINT8" | "UINT16" | "UINT32" | "UINT64" => "[1,255]",
            _ => "[1,-128]",
        };
        let answer = infer(&app, &identity(datatype), &x(datatype.name(), "[2]", data)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert!(
            answer.text().ends_with(&format!(
                r#""datatype":"{datatype}","shape":[2],"data":{data}}}]}}"#
            )),
            "{}",
            answer.text()
        );
    }
}

/// The content type is ignored, because clients send arbitrary types.
#[tokio::test]
async fn content_types_are_not_looked_at() {
    let app = app();
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
        "x",
        "",
    ] {
        let headers = [("content-type", content_type)];
        let answer = infer_with(&app, "identity_fp32", &headers, x("FP32", "[1]", "[1]").into()).await;
        assert_eq!(answer.status, StatusCode::OK, "{content_type}");
    }
}

/// The size of a body's chunks does not affect the response.
#[tokio::test]
async fn bodies_in_pieces() {
    let app = app();
    let json = x("INT32", "[4]", "[1,-2,3,-4]");
    for size in [1, 2, 7, 1000] {
        let answer = infer_with(&app, "identity_int32", &[], in_pieces(json.as_bytes(), size)).await;
        assert!(
            answer.text().ends_with(r#""data":[1,-2,3,-4]}]}"#),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn compressed_bodies() {
    let app = app();
    let json = binary_x(1000, true);
    let whole = [json.as_bytes(), &[9; 1000]].concat();
    // The header counts bytes before compression.
    let length = json.len().to_string();
    for (encoding, body) in [
        ("gzip", gzip(&whole)),
        ("deflate", zlib(&whole)),
        ("identity", whole.clone()),
    ] {
        let headers = [
            ("inference-header-content-length", length.as_str()),
            ("content-encoding", encoding),
        ];
        let answer = infer_with(&app, "identity_uint8", &headers, body.into()).await;
        assert_eq!(
            (answer.status, &answer.frames[1][..]),
            (StatusCode::OK, &[9; 1000][..]),
            "{encoding}"
        );
    }
}

/// Rejects compressed bodies that are too large, corrupt or in a different format.
#[tokio::test]
async fn compressed_bodies_are_bounded() {
    let (app, _) = app_with(HttpConfig::default().with(|config| config.max_body_bytes = 1 << 20));
    let bomb = gzip(&vec![b' '; (1 << 20) + 1]);
    assert!(bomb.len() < 10_000);
    let answer = infer_with(
        &app,
        "identity_fp32",
        &[("content-encoding", "gzip")],
        bomb.clone().into(),
    )
    .await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(
        answer.error(),
        "the body is larger than 1048576 bytes once it is decompressed"
    );

    let cut = infer_with(
        &app,
        "identity_fp32",
        &[("content-encoding", "gzip")],
        bomb[..100].to_vec().into(),
    )
    .await;
    assert_eq!(
        (cut.status, cut.error()),
        (
            StatusCode::BAD_REQUEST,
            "the compressed body is malformed: it is truncated".into()
        )
    );

    for encoding in ["br", "zstd", "gzip, gzip"] {
        let answer = infer_with(
            &app,
            "identity_fp32",
            &[("content-encoding", encoding)],
            Body::empty(),
        )
        .await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(answer.header("accept-encoding"), Some("gzip, deflate"));
        answer.error();
    }
}

/// Accepts bodies up to the limit, and rejects larger ones.
#[tokio::test]
async fn the_limit_for_bodies() {
    let json = x("FP32", "[1]", "[1]");
    for (limit, status) in [
        (json.len() - 1, StatusCode::PAYLOAD_TOO_LARGE),
        (json.len(), StatusCode::OK),
        (json.len() + 1, StatusCode::OK),
    ] {
        let (app, _) = app_with(HttpConfig::default().with(|config| config.max_body_bytes = limit));
        for body in [Body::from(json.clone()), in_pieces(json.as_bytes(), 10)] {
            assert_eq!(
                infer_with(&app, "identity_fp32", &[], body).await.status,
                status,
                "{limit}"
            );
        }
    }
    // A body whose declared length is too large is rejected before any of it arrives.
    let headers = [("content-length", "67108865")];
    let answer = infer_with(&app(), "identity_fp32", &headers, Body::new(StalledBody)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(
        answer.error(),
        "expected a body of at most 67108864 bytes, found 67108865"
    );
}

/// Cuts an endless body without a declared length at the limit.
#[tokio::test]
async fn endless_bodies_are_cut_at_the_limit() {
    let (app, _) = app_with(HttpConfig::default().with(|config| config.max_body_bytes = 1 << 20));
    let answer = infer_with(&app, "identity_fp32", &[], Body::new(EndlessBody)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(
        answer.error(),
        "expected a body of at most 1048576 bytes, found more"
    );
}

/// Rejects an unsupported encoding before the body arrives.
#[tokio::test]
async fn zstd_is_not_offered() {
    let headers = [("content-encoding", "zstd")];
    let answer = infer_with(&app(), "identity_fp32", &headers, Body::new(StalledBody)).await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(answer.header("accept-encoding"), Some("gzip, deflate"));
    assert_eq!(
        answer.error(),
        "Content-Encoding: expected one of gzip and deflate, found 'zstd'"
    );
}

/// The size limit for tensors also applies to tensors that are decoded from JSON.
#[tokio::test]
async fn decoded_json_is_bounded() {
    let limits = RequestLimits::default().with(|limits| limits.tensor_bytes = 800);
    let (app, _) = app_with(HttpConfig::default().with(|config| config.limits = limits));
    for (count, status) in [(100, StatusCode::OK), (101, StatusCode::PAYLOAD_TOO_LARGE)] {
        let data = format!("[{}]", vec!["1"; count].join(","));
        let answer = infer(&app, "identity_int64", &x("INT64", &format!("[{count}]"), &data)).await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }
}

/// When the budget is used up, the next body is rejected before it is read.
#[tokio::test]
async fn bodies_share_a_budget() {
    let budget = ByteBudget::new(100_000);
    let (app, _) = app_with(HttpConfig::default().with(|config| config.budget = budget.clone()));
    let taken = budget.take(99_950).unwrap();
    let headers = [("content-length", "100")];
    let answer = infer_with(&app, "identity_fp32", &headers, Body::new(StalledBody)).await;
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, Some("1"))
    );
    answer.error();
    let answer = infer_with(&app, "identity_fp32", &[], in_pieces(&[b' '; 100], 10)).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    drop(taken);
    assert_eq!(
        infer(&app, "identity_fp32", &x("FP32", "[1]", "[1]"))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(budget.used(), 0, "bytes were not given back");
}

#[tokio::test]
async fn large_json_takes_the_same_way() {
    let count = 200_000;
    let values: Vec<String> = (0..count).map(|value| value.to_string()).collect();
    let data = format!("[{}]", values.join(","));
    let answer = infer(
        &app(),
        "identity_int32",
        &x("INT32", &format!("[{count}]"), &data),
    )
    .await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.text().ends_with(&format!(r#""data":{data}}}]}}"#)));
    let answer = infer(
        &app(),
        "identity_int32",
        &x("INT32", &format!("[{}]", count + 1), &data),
    )
    .await;
    assert!(
        answer
            .error()
            .ends_with("expected 200001 elements for shape [200001], found 200000")
    );
}

/// Encodes values that JSON cannot represent as the configuration says, or rejects them.
#[tokio::test]
async fn values_without_a_json_form() {
    let request = x("FP32", "[1]", "[1]");
    for (rule, data) in [
        (NonFinite::Null, "[null,null,null]"),
        (NonFinite::Literal, "[NaN,Infinity,-Infinity]"),
        (NonFinite::String, r#"["NaN","Infinity","-Infinity"]"#),
    ] {
        let (app, _) = app_with(HttpConfig::default().with(|config| config.non_finite = rule));
        assert!(
            infer(&app, "nan", &request)
                .await
                .text()
                .ends_with(&format!("{data}}}]}}"))
        );
    }
    let (app, _) = app_with(HttpConfig::default().with(|config| config.non_finite = NonFinite::Error));
    let answer = infer(&app, "nan", &request).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.error().contains("binary_data"));

    let answer = infer(&app, "not_text", &x("BYTES", "[0]", "[]")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.error().contains("not UTF-8") && answer.error().contains("binary_data"));

    let (app, _) = app_with(HttpConfig::default().with(|config| config.max_answer_bytes = 100));
    let answer = infer(&app, "identity_fp32", &request).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.error().ends_with("the limit is 100"));
}

/// A request and its work end at the request's own deadline, or at the server's default if the request sets
/// none.
#[tokio::test]
async fn deadlines() {
    let time = TimeLimits::default().with(|time| {
        time.default = Duration::from_millis(50);
        time.max = Duration::from_millis(100);
    });
    let (app, service) = app_with(HttpConfig::default().with(|config| config.time = time));
    for parameters in [
        "",
        r#""parameters":{"timeout":1000},"#,
        r#""parameters":{"timeout":999999999},"#,
    ] {
        let body = x("FP32", "[1]", "[1]").replacen('{', &format!("{{{parameters}"), 1);
        let answer = infer(&app, "slow", &body).await;
        assert_eq!(
            (answer.status, answer.error()),
            (
                StatusCode::GATEWAY_TIMEOUT,
                "model 'slow': the deadline passed".into()
            )
        );
    }
    assert_eq!(service.waiting(), 0, "the work goes on");
}

/// Dropping a request cancels the service's work.
#[tokio::test]
async fn a_dropped_request_is_dropped_work() {
    let (app, service) = app_with(HttpConfig::default());
    let request = Request::post("/v2/models/slow/infer")
        .header("host", "x")
        .body(x("FP32", "[1]", "[1]").into());
    let answering = tokio::spawn(async move { drop(call(&app, request.unwrap()).await) });
    while service.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    answering.abort();
    assert!(answering.await.is_err());
    assert_eq!(service.waiting(), 0);
}
