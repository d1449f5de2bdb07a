//! Access control: invalid tokens, forbidden models, rate limits, restricted APIs.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use oip_grpc::proto::{
    ModelInferRequest, ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest,
    RepositoryIndexRequest, RepositoryModelUnloadRequest, ServerLiveRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
};
use tempfile::TempDir;
use tonic::{
    Code, Request, Status,
    codegen::tokio_stream,
    transport::{Channel, Endpoint},
};

use crate::support::{Server, TestResponse, failing};

/// The SHA-256 of the token `s3cret`.
pub(crate) const SECRET: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

pub(crate) const UNLOAD: &str = "/v2/repository/models/open/unload";

/// Returns a repository with the same tensor file as two models.
pub(crate) fn two_models() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors");
    for model in ["open", "closed"] {
        let version = folder.path().join(model).join("1");
        fs::create_dir_all(&version).unwrap();
        fs::copy(&example, version.join("model.safetensors")).unwrap();
    }
    folder
}

/// Starts a server with the identity table `table` and the options `more`.
pub(crate) fn server(table: &str, more: &[&str]) -> (Server, TempDir) {
    let folder = two_models();
    let path = folder.path().join("auth.toml");
    fs::write(&path, table).unwrap();
    let options = ["--auth", path.to_str().unwrap()];
    let options: Vec<&str> = options.iter().chain(more).copied().collect();
    let mut server = Server::start(folder.path(), &options);
    server.wait_until_loaded();
    (server, folder)
}

pub(crate) fn ask(server: &Server, method: &str, path: &str, token: Option<&str>) -> TestResponse {
    let value = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> = value
        .iter()
        .map(|value| ("Authorization", value.as_str()))
        .collect();
    server.request(method, path, &headers, b"")
}

pub(crate) fn error(answer: &TestResponse) -> String {
    answer.json()["error"].as_str().unwrap().to_owned()
}

pub(crate) async fn client(server: &Server) -> GrpcInferenceServiceClient<Channel> {
    client_at(format!("http://{}", server.grpc)).await
}

pub(crate) async fn client_at(url: String) -> GrpcInferenceServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(url).unwrap();
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

fn with<T>(message: T, name: &'static str, value: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(name, value.parse().unwrap());
    request
}

pub(crate) fn known<T>(message: T) -> Request<T> {
    with(message, "authorization", "Bearer s3cret")
}

pub(crate) fn code<T>(answer: Result<T, Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

pub(crate) fn table() -> String {
    format!(
        "[identities.ci]\ntoken-sha256 = [\"{SECRET}\"]\napis = [\"inference\", \"metadata\", \"repository\", \"statistics\"]\n\
         models = [\"op*\"]\n[anonymous]\napis = [\"health\"]\n"
    )
}

#[test]
fn the_table_holds_over_http() {
    let (server, _folder) = server(&table(), &[]);
    assert_eq!(ask(&server, "GET", "/v2/health/ready", None).status, 200);
    let answer = ask(&server, "GET", "/v2/models/open", None);
    assert_eq!(
        (answer.status, error(&answer)),
        (403, "identity 'anonymous' may not use the API 'metadata'".into())
    );
    for token in ["wrong", "", "s3cret2", "a.b.c"] {
        let answer = ask(&server, "GET", "/v2/health/ready", Some(token));
        assert_eq!(answer.status, 401, "{token}");
        let challenge = answer.header("www-authenticate").unwrap();
        assert!(
            challenge.starts_with("Bearer ") && challenge.contains("invalid_token"),
            "{challenge}"
        );
    }
    let twice = [
        ("Authorization", "Bearer s3cret"),
        ("Authorization", "Bearer s3cret"),
    ];
    assert_eq!(server.request("GET", "/v2", &twice, b"").status, 401);
    assert_eq!(
        server
            .request("GET", "/v2", &[("Authorization", "Basic eA==")], b"")
            .status,
        401
    );

    assert_eq!(ask(&server, "GET", "/v2/models/open", Some("s3cret")).status, 200);
    for path in [
        "/v2/models/closed",
        "/v2/models/%63losed",
        "/v2/models/closed/config",
        "/v2/models/closed/stats",
    ] {
        let answer = ask(&server, "GET", path, Some("s3cret"));
        assert_eq!(
            (answer.status, error(&answer)),
            (403, "identity 'ci' may not use model 'closed'".into())
        );
    }
    let answer = ask(&server, "POST", "/v2/models/closed/infer", Some("s3cret"));
    assert_eq!(answer.status, 403);
    for path in ["/metrics", "/v2/logging", "/unheard-of", "/v2/health/live"] {
        assert_eq!(ask(&server, "GET", path, Some("s3cret")).status, 403, "{path}");
    }
    // Lists show only models that the client may use.
    let models = ask(&server, "GET", "/v2/models", Some("s3cret")).json();
    assert_eq!(models["models"], serde_json::json!(["open"]));
    let index = ask(&server, "POST", "/v2/repository/index", Some("s3cret")).json();
    assert!(
        index.as_array().unwrap().len() == 1 && index[0]["name"] == "open",
        "{index}"
    );
    let statistics = ask(&server, "GET", "/v2/models/stats", Some("s3cret")).json();
    assert_eq!(statistics["model_stats"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_table_holds_over_grpc() {
    let (server, _folder) = server(&table(), &[]);
    let mut client = client(&server).await;
    assert_eq!(code(client.server_live(ServerLiveRequest {}).await), Code::Ok);
    let metadata = |name: &str| ModelMetadataRequest {
        name: name.into(),
        ..Default::default()
    };
    assert_eq!(
        code(client.model_metadata(metadata("open")).await),
        Code::PermissionDenied
    );
    let wrong = with(metadata("open"), "authorization", "Bearer wrong");
    let status = client.model_metadata(wrong).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unauthenticated, "the token is not known")
    );

    assert_eq!(
        code(client.model_metadata(known(metadata("open"))).await),
        Code::Ok
    );
    let status = client
        .model_metadata(known(metadata("closed")))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::PermissionDenied, "identity 'ci' may not use model 'closed'")
    );
    let infer = |name: &str| ModelInferRequest {
        model_name: name.into(),
        ..Default::default()
    };
    assert_eq!(code(client.model_infer(known(infer("open"))).await), Code::Ok);
    assert_eq!(
        code(client.model_infer(known(infer("closed"))).await),
        Code::PermissionDenied
    );
    assert_eq!(
        code(client.model_infer(infer("open")).await),
        Code::PermissionDenied
    );
    let statistics = |name: &str| ModelStatisticsRequest {
        name: name.into(),
        ..Default::default()
    };
    assert_eq!(
        code(client.model_statistics(known(statistics("closed"))).await),
        Code::PermissionDenied
    );
    let all = client
        .model_statistics(known(statistics("")))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(all.model_stats.len(), 1);
    let index = client
        .repository_index(known(RepositoryIndexRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert!(index.models.len() == 1 && index.models[0].name == "open");
    let ready = ModelReadyRequest {
        name: "open".into(),
        ..Default::default()
    };
    assert_eq!(
        code(client.model_ready(known(ready)).await),
        Code::PermissionDenied
    );
    for request in [
        RepositoryModelUnloadRequest {
            model_name: "closed".into(),
            ..Default::default()
        },
        // In KServe's definition, this field contains the model's name.
        RepositoryModelUnloadRequest {
            repository_name: "closed".into(),
            ..Default::default()
        },
    ] {
        assert_eq!(
            code(client.repository_model_unload(known(request)).await),
            Code::PermissionDenied
        );
    }
    // On a stream each request is authorized separately.
    let requests = tokio_stream::iter([infer("open"), infer("closed"), infer("open")]);
    let mut answers = client
        .model_stream_infer(known(requests))
        .await
        .unwrap()
        .into_inner();
    let mut errors = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        errors.push(answer.error_message);
    }
    assert_eq!(errors, ["", "identity 'ci' may not use model 'closed'", ""]);
}

#[tokio::test]
async fn whoever_calls_too_often_is_told_when_to_come_back() {
    let table = format!("{}rate = 0.01\nburst = 2\n", table());
    let (server, _folder) = server(&table, &[]);
    for expected in [200, 200, 429] {
        let answer = ask(&server, "GET", "/v2/health/live", None);
        assert_eq!(answer.status, expected);
        if expected == 429 {
            let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((50..=100).contains(&after), "{after}");
            assert_eq!(error(&answer), "identity 'anonymous' exceeds its rate");
        }
    }
    let mut client = client(&server).await;
    assert_eq!(
        code(client.server_live(ServerLiveRequest {}).await),
        Code::ResourceExhausted
    );
    // Another identity has a separate limit.
    assert_eq!(ask(&server, "GET", "/v2", Some("s3cret")).status, 200);
}

#[test]
fn a_changed_table_holds_and_a_broken_one_does_not() {
    let (server, folder) = server(&table(), &[]);
    let path = folder.path().join("auth.toml");
    assert_eq!(ask(&server, "GET", "/v2", Some("s3cret")).status, 200);
    fs::write(&path, "[identities.ci]\napis = [\"nothing\"]").unwrap();
    // The file is checked every five seconds.
    thread::sleep(Duration::from_secs(6));
    assert_eq!(ask(&server, "GET", "/v2", Some("s3cret")).status, 200);
    fs::write(&path, "[anonymous]\napis = [\"health\"]").unwrap();
    let start = Instant::now();
    while ask(&server, "GET", "/v2", Some("s3cret")).status != 401 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the changed table never holds"
        );
        thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test]
async fn restricted_apis_are_tritons() {
    let folder = two_models();
    let options = [
        "--http-restricted-api=inference,model-repository:infer-key=infer-value",
        "--http-restricted-api=metrics:metrics-key=other",
        "--grpc-restricted-protocol=inference,model-repository:infer-key=infer-value",
    ];
    let mut server = Server::start(folder.path(), &options);
    server.wait_until_loaded();
    assert_eq!(ask(&server, "GET", "/v2/models/open", None).status, 200);
    let path = "/v2/models/open/infer";
    let answer = server.request("POST", path, &[("infer-key", "wrong")], b"{\"inputs\": []}");
    assert_eq!(
        (answer.status, error(&answer)),
        (403, "This API is restricted, expecting header 'infer-key'".into())
    );
    let answer = server.request("POST", path, &[("infer-key", "infer-value")], b"{\"inputs\": []}");
    assert_eq!(answer.status, 200);
    assert_eq!(server.get("/metrics").status, 403);
    assert_eq!(server.get("/metrics/").status, 403);
    assert_eq!(
        server
            .request("GET", "/metrics", &[("metrics-key", "other")], b"")
            .status,
        200
    );

    let mut client = client(&server).await;
    let infer = ModelInferRequest {
        model_name: "open".into(),
        ..Default::default()
    };
    let status = client.model_infer(infer.clone()).await.unwrap_err();
    let text = "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'";
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, text));
    let with_header = with(infer, "triton-grpc-protocol-infer-key", "infer-value");
    assert_eq!(code(client.model_infer(with_header).await), Code::Ok);
}

#[test]
fn pages_of_named_origins_may_read_answers() {
    let path = "/v2/models/open/infer";
    let asking = |origin| {
        [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization,content-type"),
        ]
    };
    let (server, _folder) = server(
        &table(),
        &["--cors-origin=https://app.example.com,http://localhost:3000"],
    );
    for origin in ["https://app.example.com", "http://localhost:3000"] {
        // Browsers send preflight requests without a token.
        let answer = server.request("OPTIONS", path, &asking(origin), b"");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert_eq!(
            answer.header("access-control-allow-headers"),
            Some("authorization,content-type")
        );
        // Scripts can read error responses too.
        let answer = server.request("GET", "/v2", &[("Origin", origin)], b"");
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (403, Some(origin))
        );
    }
    let answer = server.request("OPTIONS", path, &asking("https://evil.example"), b"");
    assert_eq!(answer.header("access-control-allow-origin"), None);

    let folder = two_models();
    let server = Server::start(folder.path(), &[]);
    let answer = server.request("GET", "/v2", &[("Origin", "https://app.example.com")], b"");
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, None)
    );
}

#[test]
fn wrong_files_and_options_are_told_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("auth.toml");
    fs::write(&path, "[identities.ci]\napis = [\"all\"]\n").unwrap();
    let path = path.to_str().unwrap();
    let repository = folder.path().to_str().unwrap();
    for (options, message) in [
        (vec!["--auth", "/nowhere.toml"], "--auth: /nowhere.toml: cannot be read: No such file or directory".to_owned()),
        (vec!["--auth", path], format!("--auth: {path}, line 2: unknown group 'all'; expected health, metadata, inference")),
        (vec!["--http-restricted-api", "inference"], "--http-restricted-api: expected API,API,...:key=value, found no ':'".to_owned()),
        (
            vec!["--http-restricted-api=health:a=b", "--http-restricted-api=health:c=d"],
            "--http-restricted-api: 'health' is given twice; each may be in one group only".to_owned(),
        ),
        (
            vec!["--grpc-restricted-protocol", "everything:a=b"],
            "--grpc-restricted-protocol: unknown protocol 'everything'; expected health, metadata,".to_owned(),
        ),
        (
            vec!["--cors-origin", "app.example.com"],
            "--cors-origin: expected an origin such as https://app.example.com, or * alone, found 'app.example.com'".to_owned(),
        ),
        (vec!["--admin-address", "nonsense"], "--admin-address: expected HOST:PORT, :PORT, unix:PATH or none, found 'nonsense'".to_owned()),
    ] {
        let begin = ["--model-repository", repository];
        let arguments: Vec<&str> = begin.iter().copied().chain(options).collect();
        let (code, line) = failing(&arguments);
        assert!(code == 2 && line.starts_with(&message), "{code}: {line}");
    }
}
