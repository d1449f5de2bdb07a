//! Tests the text APIs of `OpenAI`, text-embeddings-inference and Cohere.

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use oip_http::{HttpConfig, HttpService};
use oip_service::{Grant, Rights};
use oip_types::{ErrorCode, ServiceError};
use serde_json::{Value, json};

use crate::support::{TestResponse, app, app_with, send};

async fn post(app: &HttpService, path: &str, body: impl Into<Body>) -> TestResponse {
    send(app, Method::POST, path, body.into()).await
}

async fn asked(path: &str, body: Value) -> (StatusCode, Value) {
    let answer = post(&app(), path, body.to_string()).await;
    (answer.status, answer.json())
}

async fn given(path: &str, body: Value) -> Value {
    let (status, answer) = asked(path, body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

async fn refusal(path: &str, body: Value) -> (u16, String) {
    let (status, answer) = asked(path, body).await;
    let error = match path {
        "/v1/embeddings" => &answer["error"]["message"],
        _ => &answer["error"],
    };
    (status.as_u16(), error.as_str().unwrap().to_owned())
}

/// Errors have the form that the clients of each API read.
#[tokio::test]
async fn errors_have_the_form_of_their_api() {
    let said = "model 'nope' does not exist; there are 'loading', 'matrix', 'never'";
    for (path, wanted) in [
        (
            "/v1/embeddings",
            json!({"error": {"message": said, "type": "invalid_request_error", "param": null,
                "code": "model_not_found"}}),
        ),
        ("/embed", json!({"error": said, "error_type": "Validation"})),
        ("/v1/rerank", json!({"message": said, "error": said})),
    ] {
        let body = json!({"model": "nope", "input": "a", "inputs": "a", "query": "a", "documents": ["a"]});
        let (status, found) = asked(path, body).await;
        assert_eq!((status, found), (StatusCode::NOT_FOUND, wanted), "{path}");
    }
    // Requests that the entrance refuses, too.
    let request = axum::http::Request::post("/v1/embeddings")
        .body(Body::empty())
        .unwrap();
    let refused = crate::support::call(&app(), request).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        refused.json()["error"],
        json!({"message": "expected one Host header, found 0", "type": "invalid_request_error", "param": null, "code": null})
    );
    let (status, found) = asked("/embed", json!({"model": "loading", "inputs": "a"})).await;
    assert_eq!(
        (status.as_u16(), &found["error_type"]),
        (503, &json!("Unhealthy"))
    );
}

#[tokio::test]
async fn openai_embeds_one_text_and_many() {
    let one = given("/v1/embeddings", json!({"model": "minilm", "input": "abc"})).await;
    assert_eq!(
        one,
        json!({"object": "list", "model": "minilm", "usage": {"prompt_tokens": 3, "total_tokens": 3},
            "data": [{"object": "embedding", "index": 0, "embedding": [3.0, 4.0]}]})
    );
    let many = given(
        "/v1/embeddings",
        json!({"model": "minilm", "input": ["abc", ""], "user": "me"}),
    )
    .await;
    assert_eq!(
        many["data"][1],
        json!({"object": "embedding", "index": 1, "embedding": [0.0, 4.0]})
    );
    // Token ids are passed to the model as text.
    let ids = given(
        "/v1/embeddings",
        json!({"model": "minilm", "input": [[7, 8], [9]]}),
    )
    .await;
    assert_eq!(ids["data"][0]["embedding"], json!([5.0, 4.0]));
}

#[tokio::test]
async fn openai_gives_base64_and_fewer_dimensions() {
    let body = json!({"model": "minilm", "input": "abc", "encoding_format": "base64"});
    let encoded = given("/v1/embeddings", body).await;
    let bytes = STANDARD
        .decode(encoded["data"][0]["embedding"].as_str().unwrap())
        .unwrap();
    assert_eq!(bytes, [3.0_f32.to_le_bytes(), 4.0_f32.to_le_bytes()].concat());
    let fewer = given(
        "/v1/embeddings",
        json!({"model": "minilm", "input": "abc", "dimensions": 1}),
    )
    .await;
    assert_eq!(fewer["data"][0]["embedding"], json!([1.0]));
    assert_eq!(
        refusal(
            "/v1/embeddings",
            json!({"model": "minilm", "input": "abc", "dimensions": 3})
        )
        .await,
        (
            400,
            "model 'minilm': dimensions: expected at most 2, found 3".to_owned()
        )
    );
    let (status, _) = refusal(
        "/v1/embeddings",
        json!({"model": "minilm", "input": "a", "dimensions": 0}),
    )
    .await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn the_routes_of_text_embeddings_inference_answer() {
    let vectors = given("/embed", json!({"model": "minilm", "inputs": ["abc"]})).await;
    assert_eq!(vectors, json!([[0.6, 0.8]]));
    let vectors = given(
        "/embed",
        json!({"model": "minilm", "inputs": "abc", "normalize": false}),
    )
    .await;
    assert_eq!(vectors, json!([[3.0, 4.0]]));
    let body =
        json!({"model": "reranker", "query": "abc", "texts": ["a", "abc", "abcd"], "return_text": true});
    assert_eq!(
        given("/rerank", body).await,
        json!([{"index": 1, "score": 1.0, "text": "abc"}, {"index": 2, "score": 0.5, "text": "abcd"},
            {"index": 0, "score": 0.333_333_34, "text": "a"}])
    );
    let classes = json!([{"score": 0.75, "label": "good"}, {"score": 0.25, "label": "bad"}]);
    assert_eq!(
        given("/predict", json!({"model": "sentiment", "inputs": "a"})).await,
        classes
    );
    assert_eq!(
        given("/predict", json!({"model": "sentiment", "inputs": ["a", "b"]})).await,
        classes
    );
    let both = given(
        "/predict",
        json!({"model": "sentiment", "inputs": [["a"], ["b"]]}),
    )
    .await;
    assert_eq!(both, json!([classes, classes]));
    let (status, _) = refusal(
        "/predict",
        json!({"model": "sentiment", "inputs": [["a"], ["b", "c"]]}),
    )
    .await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn cohere_reranks_documents() {
    let body = json!({"model": "reranker", "query": "abc", "documents": ["a", {"text": "abc"}], "top_n": 1,
        "return_documents": true});
    let answer = given("/v1/rerank", body).await;
    let results = json!([{"index": 1, "relevance_score": 1.0, "document": {"text": "abc"}}]);
    assert_eq!(answer["results"], results);
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    for (path, body, status, message) in [
        (
            "/v1/embeddings",
            json!({"model": "nope", "input": "a"}),
            404,
            "model 'nope' does not exist",
        ),
        (
            "/v1/embeddings",
            json!({"model": "loading", "input": "a"}),
            503,
            "model 'loading' is not ready",
        ),
        (
            "/v1/embeddings",
            json!({"model": "nan", "input": "a"}),
            400,
            "it is no text model with the output 'embedding'",
        ),
        (
            "/v1/embeddings",
            json!({"model": "../x", "input": "a"}),
            400,
            "model name",
        ),
        (
            "/v1/embeddings",
            json!({"model": "minilm", "input": []}),
            400,
            "expected at least one text, found none",
        ),
        (
            "/v1/embeddings",
            json!({"model": "minilm", "input": 7}),
            400,
            "input: invalid type: integer `7`, expected a string, a list of strings",
        ),
        (
            "/v1/embeddings",
            json!({"model": "minilm"}),
            400,
            "missing field `input`",
        ),
        (
            "/embed",
            json!({"inputs": "a"}),
            404,
            "no text model with the output 'embedding' is ready",
        ),
        (
            "/predict",
            json!({"model": "minilm", "inputs": "a"}),
            400,
            "with the output 'scores' or 'score'",
        ),
        (
            "/embed",
            json!({"model": "minilm", "inputs": "a", "prompt_name": "query"}),
            400,
            "prompts are not supported",
        ),
    ] {
        let (found, error) = refusal(path, body.clone()).await;
        assert_eq!(found, status, "{path} {body}: {error}");
        assert!(error.contains(message), "{path} {body}: {error}");
    }
}

/// Errors about one of several texts name its index.
#[tokio::test]
async fn the_index_of_a_wrong_text_is_said() {
    for (path, body, place) in [
        (
            "/v1/embeddings",
            r#"{"model": "minilm", "input": "X"}"#,
            "input: ",
        ),
        (
            "/v1/embeddings",
            r#"{"model": "minilm", "input": ["", "a", "bX"]}"#,
            "input[2]: ",
        ),
        (
            "/embed",
            r#"{"model": "minilm", "inputs": ["a", "X"]}"#,
            "inputs[1]: ",
        ),
        ("/rerank", r#"{"query": "X", "texts": ["a"]}"#, "query: "),
        ("/rerank", r#"{"query": "a", "texts": ["a", "X"]}"#, "texts[1]: "),
        (
            "/v1/rerank",
            r#"{"query": "a", "documents": ["a", {"text": "X"}]}"#,
            "documents[1]: ",
        ),
        ("/predict", r#"{"inputs": ["X"]}"#, "inputs[0]: "),
        (
            "/predict",
            r#"{"inputs": [["a", "b"], ["c", "X"]]}"#,
            "inputs[1]: ",
        ),
    ] {
        for wrong in [&br"\ud800"[..], br"\udc00z", b"\xff", b"a\xc3"] {
            let (start, end) = body.split_once('X').unwrap();
            let answer = post(&app(), path, [start.as_bytes(), wrong, end.as_bytes()].concat()).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body}");
            let answer = answer.text();
            assert!(
                answer.contains(&format!("the body is not as expected: {place}")),
                "{path} {body} {wrong:?}: {answer}"
            );
            assert!(answer.contains(" at line 1 column "), "{answer}");
        }
    }
    for (path, body, message) in [
        (
            "/v1/embeddings",
            json!({"input": ["a", 1]}),
            "input[1]: expected a string, a list",
        ),
        (
            "/v1/embeddings",
            json!({"input": [1, 1_u64 << 32]}),
            "input[1]: 4294967296 is no token id",
        ),
        (
            "/v1/embeddings",
            json!({"input": [[1], [-1]]}),
            "input[1]: invalid value: integer `-1`",
        ),
        (
            "/embed",
            json!({"inputs": [["a"]]}),
            "inputs[0]: invalid type: sequence",
        ),
        (
            "/rerank",
            json!({"query": "a", "texts": "a"}),
            "texts: invalid type: string",
        ),
        (
            "/predict",
            json!({"inputs": ["a", "b", "c"]}),
            "inputs[2]: expected one text or a pair",
        ),
        (
            "/predict",
            json!({"inputs": [["a", "b"], ["c"]]}),
            "inputs[1]: expected one text or a pair",
        ),
        (
            "/predict",
            json!({"inputs": [[]]}),
            "inputs[0]: expected one text or a pair",
        ),
    ] {
        let (status, error) = asked(path, body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}");
        assert!(error.to_string().contains(message), "{path} {body}: {error}");
    }
}

/// A query counts for each text that it is paired with, before it is copied for each of them.
#[tokio::test]
async fn a_query_that_is_copied_counts_toward_the_limits() {
    let (query, documents) = ("q".repeat(100_000), vec![""; 10_000]);
    for (path, body) in [
        (
            "/rerank",
            json!({"model": "reranker", "query": query, "texts": documents}),
        ),
        (
            "/v1/rerank",
            json!({"model": "reranker", "query": query, "documents": documents}),
        ),
    ] {
        let (status, error) = asked(path, body).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}: {error}");
        let message = "the request has 1000000000 bytes of text, expected at most 16777216";
        assert!(error.to_string().contains(message), "{path}: {error}");
    }
    let many = ["", "b"].repeat(8193);
    let (status, error) = asked("/rerank", json!({"query": "a", "texts": many})).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let message = "the request has 16386 texts, expected at most 16384";
    assert!(error.to_string().contains(message), "{error}");

    // Within the limits, the copies are charged to the budget.
    let body =
        json!({"model": "reranker", "query": "q".repeat(10_000), "texts": vec!["a"; 1000]}).to_string();
    for (budget, status) in [
        (4 << 20, StatusCode::PAYLOAD_TOO_LARGE),
        (16 << 20, StatusCode::OK),
    ] {
        let budget = oip_resources::ByteBudget::new(budget);
        let config = HttpConfig::default().with(|config| config.budget = budget.clone());
        let answer = post(&app_with(config).0, "/rerank", body.clone()).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        drop(answer);
        assert_eq!(budget.used(), 0);
    }
}

/// The response is limited and charged while it is printed.
#[tokio::test]
async fn a_response_of_texts_is_limited() {
    let body = json!({"model": "sentiment", "inputs": vec![["a"]; 1000]}).to_string();
    let config = HttpConfig::default().with(|config| config.max_answer_bytes = 10_000);
    let answer = post(&app_with(config).0, "/predict", body.clone()).await;
    assert_eq!(
        answer.status,
        StatusCode::INTERNAL_SERVER_ERROR,
        "{}",
        answer.text()
    );
    assert!(answer.text().contains("the limit is 10000"), "{}", answer.text());
    // The request and the outputs take less than this, the printed response more.
    let budget = oip_resources::ByteBudget::new(150_000);
    let config = HttpConfig::default().with(|config| config.budget = budget.clone());
    let answer = post(&app_with(config).0, "/predict", body).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", answer.text());
    drop(answer);
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn a_request_of_lists_is_charged_before_it_becomes_lists() {
    let config = HttpConfig::default().with(|config| {
        config.budget = oip_resources::ByteBudget::new(1 << 20);
    });
    let (app, _) = app_with(config);
    let body = format!(r#"{{"model": "minilm", "input": [{}[]]}}"#, "[],".repeat(100_000));
    let answer = post(&app, "/v1/embeddings", body).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", answer.text());
}

struct Only(&'static str);

impl Rights for Only {
    fn check_model(&self, model: &str) -> Result<(), ServiceError> {
        match model == self.0 {
            true => Ok(()),
            false => Err(ServiceError::new(ErrorCode::PermissionDenied, "another model")),
        }
    }
}

#[tokio::test]
async fn a_client_asks_only_models_that_it_may_use() {
    use tower::ServiceExt;
    for (model, status) in [("minilm", StatusCode::OK), ("reranker", StatusCode::FORBIDDEN)] {
        let body = json!({"model": model, "input": "abc", "query": "a", "texts": ["b"]}).to_string();
        let path = if model == "minilm" {
            "/v1/embeddings"
        } else {
            "/rerank"
        };
        let mut request = axum::http::Request::post(path)
            .header("host", "x")
            .body(axum::body::Body::from(body))
            .unwrap();
        request.extensions_mut().insert(Grant::new(Only("minilm")));
        let answer = app().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status, "{model}");
    }
}
