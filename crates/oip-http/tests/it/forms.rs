//! Tests response formats requested by headers, and raw binary requests.

use std::io::Read;

use axum::{body::Body, http::StatusCode};
use flate2::read::{GzDecoder, ZlibDecoder};
use oip_http::HttpService;
use serde_json::json;

use crate::support::{TestResponse, app, call, get, infer, infer_with, x};

fn decompressed(answer: &TestResponse) -> Vec<u8> {
    let body = answer.frames.concat();
    let mut plain = Vec::new();
    match answer.header("content-encoding") {
        Some("gzip") => GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap(),
        Some("deflate") => ZlibDecoder::new(&body[..]).read_to_end(&mut plain).unwrap(),
        other => panic!("{other:?}"),
    };
    plain
}

/// Returns a request whose response has several kilobytes of JSON.
fn large() -> String {
    x("FP32", "[1000]", &format!("{:?}", [0.5; 1000]))
}

async fn ask(app: &HttpService, accept_encoding: &str, json: &str) -> TestResponse {
    infer_with(
        app,
        "identity_fp32",
        &[("accept-encoding", accept_encoding)],
        Body::from(json.to_owned()),
    )
    .await
}

#[tokio::test]
async fn large_answers_are_compressed_when_the_client_asks() {
    let app = app();
    let plain = infer(&app, "identity_fp32", &large().replacen('{', "{\"id\":\"a\",", 1)).await;
    for encoding in ["gzip", "deflate"] {
        let answer = ask(&app, encoding, &large().replacen('{', "{\"id\":\"a\",", 1)).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("content-encoding"), Some(encoding));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(answer.header("vary").unwrap().contains("accept-encoding"));
        assert!(answer.frames.concat().len() < 500);
        assert_eq!(decompressed(&answer), plain.frames.concat());
    }
}

#[tokio::test]
async fn small_answers_metadata_and_errors_are_never_compressed() {
    let app = app();
    let small = ask(&app, "gzip", &x("FP32", "[1]", "[0.5]")).await;
    assert_eq!(
        (small.status, small.header("content-encoding")),
        (StatusCode::OK, None)
    );
    let error = ask(&app, "gzip", "{").await;
    assert_eq!(
        (error.status, error.header("content-encoding")),
        (StatusCode::BAD_REQUEST, None)
    );
    for path in [
        "/v2",
        "/v2/models/matrix",
        "/v2/models/matrix/config",
        "/v2/models/stats",
        "/openapi.json",
    ] {
        let request = axum::http::Request::get(path)
            .header("host", "x")
            .header("accept-encoding", "gzip");
        let answer = call(&app, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.header("content-encoding"), None, "{path}");
        assert_eq!(answer.frames.concat(), get(&app, path).await.frames.concat());
    }
}

/// In both directions, the header gives the JSON length before compression.
#[tokio::test]
async fn binary_answers_are_compressed_for_clients_that_insist() {
    let app = app();
    let json = large().replacen(
        '{',
        "{\"id\":\"a\",\"parameters\":{\"binary_data_output\":true},",
        1,
    );
    let plain = infer(&app, "identity_fp32", &json).await;
    let listed = ask(&app, "gzip, deflate, br", &json).await;
    assert_eq!(listed.header("content-encoding"), None);
    let insisted = ask(&app, "gzip", &json).await;
    assert_eq!(insisted.header("content-type"), Some("application/octet-stream"));
    let length = insisted.header("inference-header-content-length");
    assert_eq!(length, plain.header("inference-header-content-length"));
    assert!(length.is_some());
    assert_eq!(decompressed(&insisted), plain.frames.concat());
}

#[tokio::test]
async fn clients_that_take_only_json_get_json() {
    let app = app();
    let json = x("FP32", "[2]", "[0.5,1]").replacen('{', "{\"parameters\":{\"binary_data_output\":true},", 1);
    let answer = |accept: &'static str| {
        let (app, json) = (app.clone(), json.clone());
        async move { infer_with(&app, "identity_fp32", &[("accept", accept)], Body::from(json)).await }
    };
    let only = answer("application/json").await;
    assert_eq!(only.header("content-type"), Some("application/json"));
    assert_eq!(only.json()["outputs"][0]["data"], json!([0.5, 1.0]));
    for accept in [
        "*/*",
        "application/json, */*",
        "application/octet-stream, application/json",
    ] {
        assert_eq!(
            answer(accept).await.header("content-type"),
            Some("application/octet-stream"),
            "{accept}"
        );
    }
}

async fn raw(app: &HttpService, model: &str, body: &[u8]) -> TestResponse {
    infer_with(
        app,
        model,
        &[("inference-header-content-length", "0")],
        Body::from(body.to_vec()),
    )
    .await
}

#[tokio::test]
async fn raw_bodies_are_the_data_of_the_one_input() {
    let app = app();
    let data = [0.5f32, 1.5, 2.5].map(f32::to_le_bytes).concat();
    let answer = raw(&app, "identity_fp32", &data).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "{}",
        String::from_utf8_lossy(&answer.frames.concat())
    );
    let length: usize = answer
        .header("inference-header-content-length")
        .unwrap()
        .parse()
        .unwrap();
    let body = answer.frames.concat();
    assert_eq!(body[length..], data);
    let head: serde_json::Value = serde_json::from_slice(&body[..length]).unwrap();
    assert_eq!(head["outputs"][0]["shape"], json!([3]));

    let text = raw(&app, "identity_bytes", b"hello").await.frames.concat();
    assert!(text.ends_with(b"\x05\0\0\0hello"));
}

/// Rejects raw bodies that do not match the model.
#[tokio::test]
async fn raw_bodies_that_do_not_fit_the_model() {
    let app = app();
    for (model, body, error) in [
        (
            "identity_fp32",
            &b"12345"[..],
            "model 'identity_fp32': input 'x': expected a multiple of 4 bytes for FP32, found 5",
        ),
        (
            "matrix",
            b"1234",
            "model 'matrix': expected a model with one input for a raw binary request, found 2",
        ),
    ] {
        let answer = raw(&app, model, body).await;
        assert_eq!(
            (answer.status, answer.error()),
            (StatusCode::BAD_REQUEST, error.to_owned())
        );
    }
    assert_eq!(raw(&app, "zz", b"").await.status, StatusCode::NOT_FOUND);
}
