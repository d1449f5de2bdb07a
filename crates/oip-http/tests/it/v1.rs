//! Tests the V1 protocol with the requests of KServe's clients.

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use oip_http::HttpConfig;
use serde_json::json;

use crate::support::{TestResponse, app, app_with, get, send};

async fn predict(path: &str, body: &str) -> TestResponse {
    let path = format!("/v1/models/{path}");
    send(&app(), Method::POST, &path, Body::from(body.to_owned())).await
}

#[tokio::test]
async fn models_are_listed_and_say_whether_they_are_ready() {
    let app = app();
    let listed = get(&app, "/v1/models").await.json();
    assert_eq!(listed["models"], get(&app, "/v2/models").await.json()["models"]);
    assert_eq!(
        listed["data"][1],
        serde_json::json!({"id": "matrix", "object": "model", "created": 0, "owned_by": "server"})
    );
    for path in [
        "/v1/models/nan",
        "/v1/models/nan/",
        "/v1/models/matrix/versions/2",
    ] {
        let answer = get(&app, path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert_eq!(answer.json()["ready"], true);
    }
    assert_eq!(
        get(&app, "/v1/models/nothing").await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        get(&app, "/v1/models/loading").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn instances_and_inputs_become_predictions() {
    for (path, body, expected) in [
        (
            "identity_fp32:predict",
            r#"{"instances": [1, 2.5]}"#,
            json!([1.0, 2.5]),
        ),
        (
            "identity_fp32:predict/",
            r#"{"inputs": [1, 2.5]}"#,
            json!([1.0, 2.5]),
        ),
        (
            "identity_fp32_matrix:predict",
            r#"{"instances": [[1, 2], [3, 4], [5, 6]]}"#,
            json!([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        ),
        (
            "identity_int64_matrix:predict",
            r#"{"instances": [{"x": [9007199254740993]}]}"#,
            json!([[9_007_199_254_740_993_i64]]),
        ),
        (
            "identity_bytes:predict",
            r#"{"instances": ["a", "ä\""]}"#,
            json!(["a", "ä\""]),
        ),
        (
            "matrix/versions/1:predict",
            r#"{"inputs": {"a": [[1, 2], [3, 4]], "b": [7]}}"#,
            json!({"sum": [3.0, 7.0], "b": [7]}),
        ),
        // Both outputs have the same number of rows.
        (
            "matrix:predict",
            r#"{"instances": [{"a": [1, 2], "b": 7}]}"#,
            json!([{"sum": 3.0, "b": 7}]),
        ),
        ("nan:predict", r#"{"instances": [1]}"#, json!([null, null, null])),
    ] {
        let answer = predict(path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.json(), json!({ "predictions": expected }), "{path}");
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_as_by_the_second_version() {
    for (path, body, status, message) in [
        (
            "nothing:predict",
            "{}",
            StatusCode::NOT_FOUND,
            "model 'nothing' does not exist",
        ),
        (
            "loading:predict",
            "{}",
            StatusCode::SERVICE_UNAVAILABLE,
            "model 'loading' is not ready",
        ),
        (
            "identity_fp32:predict",
            "",
            StatusCode::BAD_REQUEST,
            "model 'identity_fp32': invalid JSON at byte 0",
        ),
        (
            "identity_fp32:predict",
            "{}",
            StatusCode::BAD_REQUEST,
            "model 'identity_fp32': expected \"instances\" or \"inputs\", found neither",
        ),
        (
            "identity_fp32:predict",
            r#"{"instances": [[1]]}"#,
            StatusCode::BAD_REQUEST,
            "model 'identity_fp32': input 'x'",
        ),
        (
            "not_text:predict",
            r#"{"instances": ["a"]}"#,
            StatusCode::BAD_REQUEST,
            "model 'not_text': output 'y': element 0 is not UTF-8",
        ),
        (
            "busy:predict",
            r#"{"instances": [1]}"#,
            StatusCode::TOO_MANY_REQUESTS,
            "model 'busy': its queue is full",
        ),
    ] {
        let answer = predict(path, body).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
        assert!(answer.error().starts_with(message), "{}", answer.error());
    }
    for (method, path, allowed) in [
        (Method::GET, "/v1/models/nan:predict", "POST"),
        (Method::POST, "/v1/models/nan", "GET,HEAD"),
        (Method::DELETE, "/v1/models/matrix/versions/1", "GET,HEAD"),
    ] {
        let answer = send(&app(), method, path, Body::empty()).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        assert_eq!(answer.header("allow"), Some(allowed), "{path}");
    }
}

/// Large bodies are handled on the pool, and their memory is released afterwards.
#[tokio::test]
async fn large_requests_are_answered_and_their_memory_is_given_back() {
    let config = HttpConfig::default();
    let budget = config.budget.clone();
    let (app, _) = app_with(config);
    let rows: Vec<Vec<f64>> = (0..10_000)
        .map(|row| vec![f64::from(row), f64::from(row) + 0.5, -1.0])
        .collect();
    for body in [
        json!({"instances": rows}),
        json!({"instances": rows.iter().map(|row| json!({"x": row})).collect::<Vec<_>>()}),
    ] {
        let path = "/v1/models/identity_fp64_matrix:predict";
        let answer = send(&app, Method::POST, path, Body::from(body.to_string())).await;
        assert_eq!(answer.json(), json!({"predictions": rows}));
        drop(answer);
        assert_eq!(budget.used(), 0);
    }
    // Estimated from its first row, this request would be larger than its whole body.
    let wide = vec!["0"; 100_000].join(",");
    let narrow = vec![r#"{"x":[0]}"#; 100_000].join(",");
    let body = format!(r#"{{"instances":[{{"x":[{wide}]}},{narrow}]}}"#);
    let path = "/v1/models/identity_fp64_matrix:predict";
    let answer = send(&app, Method::POST, path, Body::from(body)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(
        answer.error().contains("instances: [1]: input 'x': "),
        "{}",
        answer.error()
    );
    assert_eq!(budget.used(), 0);
}
