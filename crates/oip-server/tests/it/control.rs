//! Tests control modes: which models are served, over both transports.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use oip_grpc::proto::{
    ModelConfigRequest, ModelRepositoryParameter, RepositoryIndexRequest, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
    model_repository_parameter::ParameterChoice,
};
use serde_json::{Value, json};
use tonic::{Code, transport::Endpoint};

use crate::support::{Server, TestResponse};

/// Copies an example model into a repository, as a version of `digits`.
fn put(repository: &Path, example: &str, version: &str) {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let folder = repository.join("digits").join(version);
    fs::create_dir_all(&folder).unwrap();
    fs::copy(
        examples.join(example).join("1/model.onnx"),
        folder.join("model.onnx"),
    )
    .unwrap();
}

fn post(server: &Server, path: &str, body: &Value) -> TestResponse {
    server.request("POST", path, &[], body.to_string().as_bytes())
}

fn index(server: &Server) -> Value {
    server.request("POST", "/v2/repository/index", &[], b"").json()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it does not happen: {what}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn models_are_loaded_and_unloaded_over_http() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "digits", "1");
    let mut server = Server::start(folder.path(), &["--model-control-mode=explicit"]);
    let printed = server.wait_until_loaded();
    assert!(printed.contains("No models are loaded."), "{printed}");
    assert_eq!(index(&server), json!([{"name": "digits"}]));
    assert_eq!(server.get("/v2/health/ready").status, 200);
    assert_eq!(server.get("/v2/models/digits/ready").status, 404);

    let answer = server.request("POST", "/v2/repository/models/digits/load", &[], b"");
    assert_eq!((answer.status, &answer.body[..]), (200, &b""[..]));
    assert_eq!(
        index(&server),
        json!([{"name": "digits", "version": "1", "state": "READY"}])
    );
    assert_eq!(server.get("/v2/models/digits/ready").status, 200);
    let config = server.get("/v2/models/digits/config").json();
    assert_eq!(
        (
            &config["max_batch_size"],
            &config["input"][0]["dims"],
            &config["backend"]
        ),
        (&json!(64), &json!([64]), &json!("onnx"))
    );
    let body = json!({"parameters": {"config": "{\"max_batch_size\": 8, \"backend\": \"onnxruntime\"}"}});
    assert_eq!(
        post(&server, "/v2/repository/models/digits/load", &body).status,
        200
    );
    assert_eq!(server.get("/v2/models/digits/config").json()["max_batch_size"], 8);

    let answer = post(&server, "/v2/repository/models/none/load", &json!({}));
    assert_eq!(
        (answer.status, answer.json()),
        (
            404,
            json!({"error": "failed to load 'none', failed to poll from model repository: it is not there"})
        )
    );
    let answer = post(&server, "/v2/repository/models/..%2Fdigits/load", &json!({}));
    assert_eq!(answer.status, 400);
    let body = json!({"parameters": {"file:1/model.onnx": "AAAA"}});
    assert_eq!(
        post(&server, "/v2/repository/models/digits/load", &body).status,
        400
    );

    assert_eq!(
        post(&server, "/v2/repository/models/digits/unload", &json!({})).status,
        200
    );
    let unloaded = json!([{"name": "digits", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]);
    until("it is unloaded", || index(&server) == unloaded);
    assert_eq!(server.get("/v2/models/digits/ready").status, 404);
}

#[tokio::test]
async fn models_are_loaded_and_unloaded_over_grpc() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "digits", "1");
    let mut server = Server::start(
        folder.path(),
        &["--model-control-mode", "explicit", "--load-model", "digits"],
    );
    server.wait_until_loaded();
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    let mut client = GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap());
    let states = |index: oip_grpc::proto::RepositoryIndexResponse| -> Vec<(String, String)> {
        index
            .models
            .into_iter()
            .map(|model| (model.name, model.state))
            .collect()
    };
    let ready = [("digits".to_owned(), "READY".to_owned())];
    let index = client
        .repository_index(RepositoryIndexRequest::default())
        .await
        .unwrap();
    assert_eq!(states(index.into_inner()), ready);

    let unload = RepositoryModelUnloadRequest {
        model_name: "digits".into(),
        ..Default::default()
    };
    client.repository_model_unload(unload).await.unwrap();
    let config = ModelRepositoryParameter {
        parameter_choice: Some(ParameterChoice::StringParam(r#"{"max_batch_size": 4}"#.into())),
    };
    let load = |name: &str| RepositoryModelLoadRequest {
        model_name: name.into(),
        parameters: [("config".to_owned(), config.clone())].into(),
        ..Default::default()
    };
    client.repository_model_load(load("digits")).await.unwrap();
    let index = client
        .repository_index(RepositoryIndexRequest::default())
        .await
        .unwrap();
    assert_eq!(states(index.into_inner()), ready);
    let request = ModelConfigRequest {
        name: "digits".into(),
        ..Default::default()
    };
    let config = client
        .model_config(request)
        .await
        .unwrap()
        .into_inner()
        .config
        .unwrap();
    assert_eq!(config.max_batch_size, 4);
    let error = client.repository_model_load(load("none")).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
}

#[test]
fn loading_by_request_is_refused_in_the_other_modes() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "digits", "1");
    for mode in ["none", "poll"] {
        let mut server = Server::start(folder.path(), &["--model-control-mode", mode]);
        server.wait_until_loaded();
        let answer = post(&server, "/v2/repository/models/digits/unload", &json!({}));
        assert_eq!(answer.status, 503);
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(
            error.starts_with("explicit model load / unload is not allowed if polling is enabled"),
            "{error}"
        );
        assert_eq!(server.get("/v2/models/digits/ready").status, 200);
    }
}

#[test]
fn the_repository_is_polled() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "digits", "1");
    let arguments = ["--model-control-mode=poll", "--repository-poll-secs=1"];
    let mut server = Server::start(folder.path(), &arguments);
    let printed = server.wait_until_loaded();
    assert!(printed.contains("READY"), "{printed}");
    put(folder.path(), "digits_forest", "2");
    let versions = || server.get("/v2/models/digits").json()["versions"].clone();
    until("the new version is served", || versions() == json!(["2"]));
    fs::write(
        folder.path().join("digits/config.pbtxt"),
        "version_policy { all { } }",
    )
    .unwrap();
    until("both are served", || versions() == json!(["1", "2"]));
    fs::write(folder.path().join("digits/config.pbtxt"), "oops").unwrap();
    until("the mistake is told", || {
        index(&server)[0]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("config.pbtxt: line 1, column 5"))
    });
    assert_eq!(versions(), json!(["1", "2"]));
    assert_eq!(server.get("/v2/health/ready").status, 200);
    fs::remove_dir_all(folder.path().join("digits")).unwrap();
    until("it is gone", || server.get("/v2/models/digits").status == 404);
    assert_eq!(index(&server), json!([]));
}
