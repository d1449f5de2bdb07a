//! Tests Triton's generate extension.

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use serde_json::{Value, json};

use crate::support::{TestResponse, app, send};

async fn post(path: &str, body: &Value) -> TestResponse {
    send(&app(), Method::POST, path, Body::from(body.to_string())).await
}

#[tokio::test]
async fn members_are_inputs_and_answers_are_outputs() {
    for (model, body, expected) in [
        ("identity_bytes", json!({"x": "text"}), json!("text")),
        ("identity_bytes", json!({"x": ["a", "b"]}), json!(["a", "b"])),
        ("identity_bytes", json!({"x": []}), json!([])),
        ("identity_int64", json!({"x": 7}), json!(7)),
        ("identity_bool", json!({"parameters": {"x": true}}), json!(true)),
        ("identity_fp32_scalar", json!({"x": 0.5}), json!(0.5)),
        (
            "identity_fp32_matrix",
            json!({"x": [0.5, 1.5]}),
            json!([0.5, 1.5]),
        ),
        (
            "identity_bytes",
            json!({"x": "a", "temperature": 0.5, "parameters": {"stream": false}}),
            json!("a"),
        ),
    ] {
        let answer = post(&format!("/v2/models/{model}/generate"), &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{model} {body}: {}", answer.text());
        assert_eq!(
            answer.json(),
            json!({"model_name": model, "y": expected}),
            "{body}"
        );
        let stream = post(&format!("/v2/models/{model}/generate_stream"), &body).await;
        assert_eq!(
            stream.header("content-type"),
            Some("text/event-stream; charset=utf-8")
        );
        let text = stream.text();
        let event = text.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        assert_eq!(serde_json::from_str::<Value>(event).unwrap(), answer.json());
    }
    let answer = post(
        "/v2/models/matrix/versions/2/generate",
        &json!({"id": "7", "a": [0.5, 1], "b": 3}),
    )
    .await;
    assert_eq!(
        answer.json(),
        json!({"id": "7", "model_name": "matrix", "model_version": "2", "sum": 1.5, "b": 3})
    );
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_as_elsewhere() {
    let large = "x".repeat(2 << 20);
    for (model, body, status, expected) in [
        (
            "identity_bytes",
            json!(["x"]),
            400,
            "expected an object of inputs and parameters",
        ),
        (
            "identity_bytes",
            json!({"x": [["a"]]}),
            400,
            "input 'x': expected a value, or a list of values",
        ),
        (
            "identity_bytes",
            json!({"x": null}),
            400,
            "input 'x': expected a value, or a list of values",
        ),
        (
            "identity_bytes",
            json!({"x": "a", "z": [1]}),
            400,
            "'z' is not an input of the model",
        ),
        ("identity_bytes", json!({"x": 1}), 400, "x"),
        ("identity_bytes", json!({}), 400, "x"),
        ("identity_fp32_scalar", json!({"x": [1, 2]}), 400, "x"),
        ("identity_bytes", json!({"x": large}), 413, ""),
        ("not_text", json!({"x": "a"}), 400, "UTF-8"),
        ("failing", json!({"x": 1}), 500, "it failed"),
        ("busy", json!({"x": 1}), 429, "its queue is full"),
        ("loading", json!({"x": 1}), 503, "being loaded"),
        ("nobody", json!({"x": 1}), 404, "does not exist"),
    ] {
        for end in ["generate", "generate_stream"] {
            let answer = post(&format!("/v2/models/{model}/{end}"), &body).await;
            assert_eq!(answer.status.as_u16(), status, "{model}: {}", answer.text());
            let error = answer.error();
            assert!(error.contains(expected), "{model}: {error}");
        }
    }
    let app = app();
    let answer = send(
        &app,
        Method::POST,
        "/v2/models/identity_bytes/generate",
        Body::from("{\"x\": "),
    );
    let error = answer.await.error();
    assert!(error.contains("found invalid JSON"), "{error}");
}
