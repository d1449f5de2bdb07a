//! Helpers that call the service.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use oip_http::{HttpConfig, HttpService};
use oip_service::testing::TestService;
use serde_json::Value;
use tower::ServiceExt;

pub(crate) fn app() -> HttpService {
    app_with(HttpConfig::default()).0
}

pub(crate) fn app_with(config: HttpConfig) -> (HttpService, Arc<TestService>) {
    let service = Arc::new(TestService::default());
    (oip_http::service(service.clone(), config), service)
}

pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The frames of the body as they were sent.
    pub(crate) frames: Vec<Bytes>,
}

impl TestResponse {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.frames.concat()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.frames.concat()).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Returns the message of an error, which must be an object with only a string `error`.
    pub(crate) fn error(&self) -> String {
        assert!(!self.status.is_success(), "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert_eq!(self.header("inference-header-content-length"), None);
        let json = self.json();
        assert!(self.text().len() <= 1024);
        let object = json.as_object().unwrap();
        assert_eq!(object.len(), 1, "{json}");
        let message = object["error"].as_str().unwrap().to_owned();
        // The error reveals no internals.
        assert!(
            !message.contains("src/") && !message.contains(".rs") && !message.contains("/home"),
            "{message}"
        );
        message
    }
}

pub(crate) async fn call(app: &HttpService, request: Request<Body>) -> TestResponse {
    let answering = app.clone().oneshot(request);
    let response = tokio::time::timeout(Duration::from_secs(20), answering)
        .await
        .unwrap()
        .unwrap();
    let (head, mut body) = response.into_parts();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        frames.extend(frame.unwrap().into_data());
    }
    TestResponse {
        status: head.status,
        headers: head.headers,
        frames,
    }
}

pub(crate) async fn get(app: &HttpService, path: &str) -> TestResponse {
    send(app, Method::GET, path, Body::empty()).await
}

pub(crate) async fn send(app: &HttpService, method: Method, path: &str, body: Body) -> TestResponse {
    call(
        app,
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "x")
            .body(body)
            .unwrap(),
    )
    .await
}

/// Sends a JSON body to a model's inference endpoint.
pub(crate) async fn infer(app: &HttpService, model: &str, json: &str) -> TestResponse {
    send(
        app,
        Method::POST,
        &format!("/v2/models/{model}/infer"),
        Body::from(json.to_owned()),
    )
    .await
}

/// Sends a body of JSON and binary tensors to a model's inference endpoint.
pub(crate) async fn infer_binary(app: &HttpService, model: &str, json: &str, binary: &[u8]) -> TestResponse {
    let body = [json.as_bytes(), binary].concat();
    infer_with(
        app,
        model,
        &[("inference-header-content-length", &json.len().to_string())],
        body.into(),
    )
    .await
}

pub(crate) async fn infer_with(
    app: &HttpService,
    model: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> TestResponse {
    let mut request = Request::post(format!("/v2/models/{model}/infer")).header("host", "x");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    call(app, request.body(body).unwrap()).await
}

/// Returns a request body for an identity model.
pub(crate) fn x(datatype: &str, shape: &str, data: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}"#)
}
