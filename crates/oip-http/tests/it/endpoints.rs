//! Tests every endpoint on every path.

use std::sync::atomic::Ordering;

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
    routing,
};
use http_body_util::BodyExt;
use oip_http::{HttpConfig, protocol_routes, service_with};
use serde_json::json;
use tower::ServiceExt;

use crate::support::{app, app_with, call, get, infer, send, x};

#[tokio::test]
async fn server_endpoints_in_both_slash_forms() {
    let app = app();
    let offered = oip_service::extensions::offered(&oip_service::testing::TestService::default());
    for (path, body) in [
        (
            "/v2",
            json!({"name": "test", "version": "1.2.3", "extensions": offered}),
        ),
        ("/v2/health/live", json!({"live": true})),
        ("/v2/health/ready", json!({"live": true, "ready": true})),
    ] {
        for path in [path.to_owned(), format!("{path}/")] {
            let answer = get(&app, &path).await;
            assert_eq!(
                (answer.status, answer.json()),
                (StatusCode::OK, body.clone()),
                "{path}"
            );
            assert_eq!(answer.header("content-type"), Some("application/json"));
        }
    }
}

/// Additional routes get the same checks of heads, methods and `HEAD`; the protocol's paths are unchanged.
#[tokio::test]
async fn routes_of_the_program_beside_those_of_the_protocol() {
    let more = Router::new().route("/more", routing::get(|| async { "more" }));
    let service = std::sync::Arc::new(oip_service::testing::TestService::default());
    let app = service_with(service, HttpConfig::default(), more);
    assert_eq!(get(&app, "/more").await.text(), "more");
    let answer = send(&app, Method::HEAD, "/more", Body::empty()).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, String::new()));
    let answer = send(&app, Method::POST, "/more", Body::empty()).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.header("allow"), Some("GET,HEAD"));
    assert_eq!(answer.error(), "Method Not Allowed");
    assert_eq!(get(&app, "/more/of/it").await.error(), "Not Found");
    let without_host = Request::get("/more").body(Body::empty()).unwrap();
    assert_eq!(call(&app, without_host).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(get(&app, "/v2/health/live").await.status, StatusCode::OK);
}

/// Merges the protocol's routes into a program with its own fallback and pages.
#[tokio::test]
async fn the_protocol_merges_into_a_program_with_a_fallback() {
    let service = std::sync::Arc::new(oip_service::testing::TestService::default());
    let program = Router::new()
        .route("/docs", routing::get(|| async { "the program's" }))
        .fallback(|| async { (StatusCode::NOT_FOUND, "nothing here") })
        .merge(protocol_routes(service, HttpConfig::default()));
    let get = async |path: &str| {
        let request = Request::get(path).header("host", "localhost").body(Body::empty());
        let response = program.clone().oneshot(request.unwrap()).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(
        get("/v2/health/live").await,
        (StatusCode::OK, r#"{"live":true}"#.to_owned())
    );
    assert_eq!(get("/docs").await, (StatusCode::OK, "the program's".to_owned()));
    assert_eq!(
        get("/else").await,
        (StatusCode::NOT_FOUND, "nothing here".to_owned())
    );
    let (status, text) = get("/v2/models/m/infer").await;
    assert!(
        status == StatusCode::METHOD_NOT_ALLOWED && text.contains("error"),
        "{text}"
    );
    let (status, text) = get("/v2/models/nowhere").await;
    assert!(
        status == StatusCode::NOT_FOUND && text.contains("error"),
        "{text}"
    );
}

/// Paths outside of the protocol are left to the program, even if it has no fallback.
#[tokio::test]
async fn the_protocol_judges_no_other_path() {
    let service = std::sync::Arc::new(oip_service::testing::TestService::default());
    let program = Router::new().merge(protocol_routes(service, HttpConfig::default()));
    let status = async |path: &str| {
        // The request is HTTP/1.1 and has no Host header.
        let request = Request::get(path).body(Body::empty()).unwrap();
        program.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(status("/v2/health/live").await, StatusCode::BAD_REQUEST);
    assert_eq!(status("/else").await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_server_that_is_not_ready_says_why() {
    let (app, service) = app_with(HttpConfig::default());
    service.is_not_ready.store(true, Ordering::SeqCst);
    let answer = get(&app, "/v2/health/ready").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        answer.json(),
        json!({"live": true, "ready": false, "error": "models not ready: a, b"})
    );
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(get(&app, "/v2/health/live").await.json(), json!({"live": true}));
}

#[tokio::test]
async fn model_endpoints_with_and_without_versions() {
    let app = app();
    let metadata = json!({
        "name": "matrix", "versions": ["1", "2"], "platform": "test_test",
        "inputs": [{"name": "a", "datatype": "FP32", "shape": [-1, 2]}, {"name": "b", "datatype": "INT64", "shape": [1]}],
        "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1]}, {"name": "b", "datatype": "INT64", "shape": [1]}],
    });
    for model in [
        "matrix",
        "matrix/",
        "matrix/versions/1",
        "matrix/versions/2/",
        "m%61trix",
    ] {
        let answer = get(&app, &format!("/v2/models/{model}")).await;
        assert_eq!(
            (answer.status, answer.json()),
            (StatusCode::OK, metadata.clone()),
            "{model}"
        );
        let ready = get(&app, &format!("/v2/models/{}/ready", model.trim_end_matches('/'))).await;
        assert_eq!(
            (ready.status, ready.json()),
            (StatusCode::OK, json!({"name": "matrix", "ready": true}))
        );
    }
    // Models without versions omit the member.
    assert!(get(&app, "/v2/models/nan").await.json().get("versions").is_none());
}

#[tokio::test]
async fn models_that_are_not_ready_or_do_not_exist() {
    let app = app();
    let answer = get(&app, "/v2/models/loading/ready").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        answer.json(),
        json!({"name": "loading", "ready": false, "error": "model 'loading' is not ready: it is being loaded"})
    );
    let answer = get(&app, "/v2/models/zz/ready").await;
    assert_eq!(
        (answer.status, answer.error()),
        (StatusCode::NOT_FOUND, "model 'zz' does not exist".into())
    );
    let answer = get(&app, "/v2/models/matrix/versions/99").await;
    assert_eq!(answer.error(), "model 'matrix' version '99' does not exist");
    let answer = get(&app, "/v2/models/loading").await;
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, Some("1"))
    );
}

#[tokio::test]
async fn inference_over_every_path() {
    let app = app();
    let body = r#"{"id":"42","inputs":[{"name":"a","datatype":"FP32","shape":[2,2],"data":[[1,2],[3,4.5]]},
        {"name":"b","datatype":"INT64","shape":[1],"data":[9007199254740993]}]}"#;
    for (model, version) in [
        ("matrix", "2"),
        ("matrix/versions/1", "1"),
        ("matrix/versions/2", "2"),
    ] {
        for slash in ["", "/"] {
            let path = format!("/v2/models/{model}/infer{slash}");
            let answer = send(&app, Method::POST, &path, Body::from(body)).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
            let expected = format!(
                r#"{{"id":"42","model_name":"matrix","model_version":"{version}","outputs":[{{"name":"sum","datatype":"FP32","shape":[2],"data":[3.0,7.5]}},{{"name":"b","datatype":"INT64","shape":[1],"data":[9007199254740993]}}]}}"#
            );
            assert_eq!(answer.text(), expected);
            assert_eq!(answer.header("content-type"), Some("application/json"));
        }
    }
}

#[tokio::test]
async fn outputs_are_filtered_in_the_order_asked_for() {
    let app = app();
    for (outputs, expected) in [
        (r#"[]"#, vec!["sum", "b"]),
        (r#"[{"name":"b"}]"#, vec!["b"]),
        (r#"[{"name":"b"},{"name":"sum"}]"#, vec!["b", "sum"]),
    ] {
        let body = format!(
            r#"{{"inputs":[{{"name":"a","datatype":"FP32","shape":[1,2],"data":[1,2]}},{{"name":"b","datatype":"INT64","shape":[1],"data":[3]}}],"outputs":{outputs}}}"#
        );
        let json = infer(&app, "matrix", &body).await.json();
        let names: Vec<&str> = json["outputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn ids_come_back_or_are_made() {
    let app = app();
    let answer = infer(
        &app,
        "identity_fp32",
        &x("FP32", "[1]", "[1]").replacen('{', r#"{"id":"a\u0001\"b","#, 1),
    )
    .await;
    assert_eq!(answer.json()["id"], "a\u{1}\"b");
    let mut made = Vec::new();
    for id in ["", r#""id":"","#, r#""id":null,"#] {
        let body = x("FP32", "[1]", "[1]").replacen('{', &format!("{{{id}"), 1);
        made.push(
            infer(&app, "identity_fp32", &body).await.json()["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    made.sort();
    made.dedup();
    assert_eq!(made.len(), 3);
}

/// Rejects unsupported methods.
#[tokio::test]
async fn methods() {
    let app = app();
    for path in [
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/matrix",
        "/v2/models/matrix/ready",
    ] {
        assert_eq!(
            send(&app, Method::HEAD, path, Body::empty()).await.status,
            StatusCode::OK,
            "{path}"
        );
        for method in [
            "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW",
        ] {
            let answer = send(
                &app,
                Method::from_bytes(method.as_bytes()).unwrap(),
                path,
                Body::empty(),
            )
            .await;
            assert_eq!(
                (answer.status, answer.header("allow")),
                (StatusCode::METHOD_NOT_ALLOWED, Some("GET,HEAD"))
            );
            assert_eq!(answer.error(), "Method Not Allowed");
        }
    }
    let answer = send(&app, Method::GET, "/v2/models/matrix/infer", Body::empty()).await;
    assert_eq!(answer.error(), "Method Not Allowed: this path takes POST");
    for method in [Method::GET, Method::PUT, Method::HEAD] {
        let answer = send(&app, method, "/v2/models/matrix/infer", Body::empty()).await;
        assert_eq!(
            (answer.status, answer.header("allow")),
            (StatusCode::METHOD_NOT_ALLOWED, Some("POST"))
        );
    }
}

/// Rejects unknown paths, and path traversal.
#[tokio::test]
async fn paths() {
    let app = app();
    for path in [
        "/",
        "/v1",
        "/v2/",
        "/v2/model/m",
        "/v2/models/a/b",
        "/v2/models/a/versions",
        "/v3/health/live",
        "//v2",
    ] {
        let answer = get(&app, path).await;
        if path == "/v2/" {
            assert_eq!(answer.status, StatusCode::OK);
        } else {
            assert_eq!(
                (answer.status, answer.error()),
                (StatusCode::NOT_FOUND, "Not Found".into()),
                "{path}"
            );
        }
    }
    let long = "a".repeat(4096);
    for model in [
        "..%2f..%2fetc",
        "%2e%2e",
        "%00",
        "%c0%ae",
        "a%2fb",
        "..",
        "~",
        ".hidden",
        "x%0aERROR%20forged",
        &long,
    ] {
        let answer = get(&app, &format!("/v2/models/{model}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{model}");
        assert!(!answer.error().contains('\n'));
    }
    // An empty segment is not a model name.
    assert_eq!(
        get(&app, "/v2/models//ready").await.status,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(get(&app, "/v2/models/%252e").await.status, StatusCode::NOT_FOUND);
}

/// Rejects invalid versions.
#[tokio::test]
async fn versions() {
    let app = app();
    for version in ["-1", "01", "1e3", "99999999999999999999", "latest"] {
        assert_eq!(
            get(&app, &format!("/v2/models/matrix/versions/{version}"))
                .await
                .status,
            StatusCode::NOT_FOUND
        );
    }
    assert_eq!(
        get(&app, "/v2/models/matrix/versions/..%2f1").await.status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn a_body_that_is_no_json_is_told_how_bytes_are_sent() {
    let app = app();
    let jpeg = [0xff, 0xd8, 0xff, 0xe0, 0, 0x10, b'J', b'F', b'I', b'F'];
    let answer = send(
        &app,
        Method::POST,
        "/v2/models/matrix/infer",
        Body::from(jpeg.to_vec()),
    )
    .await;
    let error = answer.error();
    assert!(
        error.ends_with("with the header Inference-Header-Content-Length: 0"),
        "{error}"
    );
    let answer = send(&app, Method::POST, "/v2/models/matrix/infer", Body::from("{")).await;
    assert!(!answer.error().contains("Inference-Header"));
}

#[tokio::test]
async fn a_model_that_does_not_exist_is_told_with_those_that_do() {
    let app = app();
    for (method, path) in [
        (Method::GET, "/v2/models/nowhere"),
        (Method::POST, "/v2/models/nowhere/infer"),
        (Method::POST, "/v2/models/no%77here/infer"),
    ] {
        let error = send(&app, method, path, Body::empty()).await.error();
        assert!(
            error.starts_with("model 'nowhere' does not exist; there are '"),
            "{error}"
        );
    }
}
