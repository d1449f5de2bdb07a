//! Tests failing requests: each has its own status, and a body that every client can parse.

use axum::{
    body::Body,
    http::{Method, Request, StatusCode, Version},
};
use oip_http::HttpConfig;

use crate::support::{app, app_with, call, get, infer, infer_binary, infer_with, send, x};

#[tokio::test]
async fn the_body_is_judged_whatever_is_wrong_with_it() {
    let app = app();
    let good = x("FP32", "[1]", "[1]");
    for (model, body, status, message) in [
        (
            "zz",
            good.as_str(),
            404,
            "model 'zz' does not exist; there are 'loading', 'matrix', 'never'",
        ),
        (
            "loading",
            &good,
            503,
            "model 'loading' is not ready: it is being loaded",
        ),
        ("failing", &good, 500, "model 'failing': it failed"),
        (
            "busy",
            &good,
            429,
            "model 'busy': its queue is full; try again later",
        ),
        (
            "identity_fp32",
            "",
            400,
            "model 'identity_fp32': invalid JSON at byte 0: expected an object, found the end",
        ),
        (
            "identity_fp32",
            "{}",
            400,
            "model 'identity_fp32': member \"inputs\" is missing",
        ),
        (
            "identity_fp32",
            r#"{"inputs":[]}"#,
            400,
            "model 'identity_fp32': input 'x' (FP32[-1]) is missing: expected 1 inputs, found 0",
        ),
        (
            "identity_int8",
            &good,
            400,
            "model 'identity_int8': input 'x': expected datatype INT8, found FP32",
        ),
    ] {
        let answer = infer(&app, model, body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error()),
            (status, message.to_owned())
        );
        let retries = matches!(status, 429 | 503);
        assert_eq!(answer.header("retry-after").is_some(), retries, "{message}");
    }
}

/// Rejects invalid lengths in the binary extension.
#[tokio::test]
async fn header_lengths_and_sizes() {
    let app = app();
    let body = x("FP32", "[1]", "[1]");
    for length in [
        "99999999999",
        "-1",
        "abc",
        "1e1",
        "18446744073709551616",
        &(body.len() + 1).to_string(),
    ] {
        let headers = [("inference-header-content-length", length)];
        let answer = infer_with(&app, "identity_fp32", &headers, body.clone().into()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{length}");
        assert!(
            answer.error().starts_with("Inference-Header-Content-Length"),
            "{}",
            answer.error()
        );
    }
    // Triton's C++ client always sends a header length equal to the body's.
    assert_eq!(
        infer_binary(&app, "identity_fp32", &body, b"").await.status,
        StatusCode::OK
    );
    let answer = infer_binary(&app, "identity_fp32", &body, b"x").await;
    assert!(answer.error().contains("1 bytes of binary data are left over"));
}

/// Rejects oversized heads.
#[tokio::test]
async fn large_heads() {
    let app = app();
    let target = |bytes: usize| format!("/v2?{}", "a".repeat(bytes - "/v2?".len()));
    assert_eq!(get(&app, &target(8192)).await.status, StatusCode::OK);
    let answer = get(&app, &target(8193)).await;
    assert_eq!(
        (answer.status, answer.error()),
        (
            StatusCode::URI_TOO_LONG,
            "the request's target has 8193 bytes, the limit is 8192".into()
        )
    );
    for (bytes, status) in [
        (32 << 10, StatusCode::OK),
        ((32 << 10) + 1, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
    ] {
        // "host: x" and a large header; each line has a colon, a space and a line end.
        let value = "a".repeat(bytes - "hostx".len() - 4 - "large".len() - 4);
        let request = Request::get("/v2").header("host", "x").header("large", value);
        let answer = call(&app, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status);
    }
}

/// HTTP/1.1 requires exactly one Host.
#[tokio::test]
async fn hosts() {
    let app = app();
    for (hosts, version, status) in [
        (0, Version::HTTP_11, StatusCode::BAD_REQUEST),
        (1, Version::HTTP_11, StatusCode::OK),
        (2, Version::HTTP_11, StatusCode::BAD_REQUEST),
        (0, Version::HTTP_10, StatusCode::OK),
    ] {
        let mut request = Request::get("/v2").version(version);
        for _ in 0..hosts {
            request = request.header("host", "x");
        }
        let answer = call(&app, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{hosts} {version:?}");
        if status != StatusCode::OK {
            assert_eq!(answer.error(), format!("expected one Host header, found {hosts}"));
        }
    }
}

/// Untrusted names cannot break out of their line, or inflate a response.
#[tokio::test]
async fn hostile_names_are_escaped_and_cut() {
    let (app, _) = app_with(HttpConfig::default());
    let name = format!("x\\u001b[2J\\n{}", "a".repeat(100_000));
    let body = format!(
        r#"{{"inputs":[{{"name":"{name}","datatype":"FP32","shape":[1],"data":[1]}}],"outputs":[{{"name":"{name}"}}]}}"#
    );
    let message = infer(&app, "identity_fp32", &body).await.error();
    assert!(
        message.starts_with(r"model 'identity_fp32': unexpected input 'x\u{1b}[2J\naaa"),
        "{message}"
    );
}

/// Rejects wrong names of inputs and outputs.
#[tokio::test]
async fn names() {
    let app = app();
    let x = |name: &str| format!(r#"{{"name":"{name}","datatype":"FP32","shape":[1],"data":[1]}}"#);
    let takes = "the model takes 'x' (FP32[-1])";
    for (inputs, outputs, error) in [
        (
            String::new(),
            "[]",
            "input 'x' (FP32[-1]) is missing: expected 1 inputs, found 0".to_owned(),
        ),
        (x("qq"), "[]", format!("unexpected input 'qq'; {takes}")),
        (
            format!("{},{}", x("x"), x("x")),
            "[]",
            "input 'x' is given more than once".to_owned(),
        ),
        (
            x("x"),
            r#"[{"name":"nope"}]"#,
            "unexpected output 'nope'; the model gives 'y' (FP32[-1])".to_owned(),
        ),
        (
            x("x"),
            r#"[{"name":"y"},{"name":"y"}]"#,
            "output 'y' is requested more than once".to_owned(),
        ),
    ] {
        let answer = infer(
            &app,
            "identity_fp32",
            &format!(r#"{{"inputs":[{inputs}],"outputs":{outputs}}}"#),
        )
        .await;
        let expected = (StatusCode::BAD_REQUEST, format!("model 'identity_fp32': {error}"));
        assert_eq!((answer.status, answer.error()), expected);
    }
}

/// Errors reveal nothing internal.
#[tokio::test]
async fn errors_say_nothing_of_the_inside() {
    let app = app();
    let good = x("FP32", "[1]", "[1]");
    let mut answers = Vec::new();
    for model in ["failing", "busy", "loading", "zz", "..%2f..%2fetc%2fpasswd"] {
        answers.push(infer(&app, model, &good).await);
    }
    for body in [
        "",
        "{",
        "[]",
        "{\"inputs\":[{}]}",
        "{\"inputs\":1}",
        "\u{0}",
        "{\"inputs\":[],\"inputs\":[]}",
    ] {
        answers.push(infer(&app, "identity_fp32", body).await);
    }
    for (method, path) in [
        (Method::POST, "/v2/repository/models/zz/load"),
        (Method::POST, "/v2/systemsharedmemory/region/r/register"),
        (Method::GET, "/etc/passwd"),
        (Method::DELETE, "/v2"),
    ] {
        answers.push(
            send(
                &app,
                method,
                path,
                Body::from("{\"key\":\"/etc/passwd\",\"byte_size\":8}"),
            )
            .await,
        );
    }
    for answer in answers {
        assert!(answer.status.is_client_error() || answer.status.is_server_error());
        let text = answer.text();
        for inside in [
            "src/",
            ".rs",
            "panicked",
            "/etc/passwd",
            "/home",
            "/dev",
            "disk on fire",
        ] {
            // A path that the client sent as a name may be repeated only by the error about path separators.
            let is_own_name = inside == "/etc/passwd" && text.contains("path separator");
            assert!(!text.contains(inside) || is_own_name, "{text}");
        }
    }
}
