//! Access control: invalid tokens, forbidden models, rate limits, and public addresses.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use oip_grpc::proto::{
    LogSettingsRequest, ModelInferRequest, ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest,
    RepositoryIndexRequest, RepositoryModelUnloadRequest, ServerLiveRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
};
use oip_telemetry::testing::Collector;
use oip_types::{InferRequest, ModelRef};
use rcgen::{KeyPair, PKCS_ED25519};
use tempfile::TempDir;
use tonic::{
    Code, Request, Status,
    codegen::tokio_stream,
    transport::{Channel, Endpoint},
};

use crate::{
    keys,
    support::{Answer, ConfigFile, Server, command, connect, failing, receive, send},
    tls::{Certificates, encrypted},
    traffic::line,
};

/// The SHA-256 of `s3cret`.
const SECRET: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

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

/// Starts a server with this identity table.
fn server(table: &str, more: &[&str]) -> (Server, TempDir) {
    let folder = two_models();
    let path = folder.path().join("auth.toml");
    fs::write(&path, table).unwrap();
    let options = ["--auth", path.to_str().unwrap()];
    let options: Vec<&str> = options.iter().chain(more).copied().collect();
    let mut server = Server::start(folder.path(), &options);
    server.wait_until_loaded();
    (server, folder)
}

fn ask(server: &Server, method: &str, path: &str, token: Option<&str>) -> Answer {
    let value = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> = value
        .iter()
        .map(|value| ("Authorization", value.as_str()))
        .collect();
    server.request(method, path, &headers, b"")
}

fn error(answer: &Answer) -> String {
    answer.json()["error"].as_str().unwrap().to_owned()
}

async fn client(server: &Server) -> GrpcInferenceServiceClient<Channel> {
    client_at(format!("http://{}", server.grpc)).await
}

async fn client_at(url: String) -> GrpcInferenceServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(url).unwrap();
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

fn with<T>(message: T, name: &'static str, value: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(name, value.parse().unwrap());
    request
}

fn known<T>(message: T) -> Request<T> {
    with(message, "authorization", "Bearer s3cret")
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

fn table() -> String {
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
        // In KServe's definition, this field has the model's name.
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

const UNLOAD: &str = "/v2/repository/models/open/unload";

#[tokio::test]
async fn addresses_for_everybody_answer_no_changes_unless_that_is_wanted() {
    let everywhere = [
        "--http-address",
        "0.0.0.0:0",
        "--grpc-address",
        "0.0.0.0:0",
        "--model-control-mode=explicit",
        "--load-model=*",
    ];
    let start = |more: &[&str]| {
        let folder = two_models();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
        command
            .arg("--model-repository")
            .arg(folder.path())
            .args(everywhere)
            .args(more);
        let mut server = Server::spawn(&mut command);
        server.wait_until_loaded();
        (server, folder)
    };
    let (server, _folder) = start(&[]);
    let answer = ask(&server, "POST", UNLOAD, None);
    assert_eq!(answer.status, 403);
    let message = error(&answer);
    for option in [
        "'unload' is refused on this address",
        "--admin-address",
        "--auth",
        "--allow-public-admin",
    ] {
        assert!(message.contains(option), "{message}");
    }
    for (method, path) in [
        ("POST", "/v2/logging"),
        ("POST", "/v2/systemsharedmemory/unregister"),
        ("POST", "/v2/repository/models/open/load"),
    ] {
        assert_eq!(ask(&server, method, path, None).status, 403, "{path}");
    }
    for (method, path) in [
        ("GET", "/v2/logging"),
        ("GET", "/metrics"),
        ("GET", "/v2/models/open/ready"),
        ("POST", "/v2/repository/index"),
    ] {
        assert_eq!(ask(&server, method, path, None).status, 200, "{path}");
    }
    let unload = RepositoryModelUnloadRequest {
        model_name: "open".into(),
        ..Default::default()
    };
    let mut grpc = client(&server).await;
    assert_eq!(
        code(grpc.repository_model_unload(unload.clone()).await),
        Code::PermissionDenied
    );
    assert_eq!(
        code(grpc.log_settings(LogSettingsRequest::default()).await),
        Code::PermissionDenied
    );

    let (server, _folder) = start(&["--allow-public-admin"]);
    assert_eq!(ask(&server, "POST", UNLOAD, None).status, 200);
    // An API that requires a header is not public.
    let (server, _folder) = start(&["--http-restricted-api=model-repository:admin-key=s3cret"]);
    assert_eq!(ask(&server, "POST", UNLOAD, None).status, 403);
    assert_eq!(
        server
            .request("POST", UNLOAD, &[("admin-key", "s3cret")], b"")
            .status,
        200
    );
    assert_eq!(
        code(client(&server).await.repository_model_unload(unload).await),
        Code::PermissionDenied
    );
}

#[tokio::test]
async fn the_admin_address_has_what_changes_the_server() {
    let folder = two_models();
    let options = [
        "--admin-address",
        "127.0.0.1:0",
        "--model-control-mode=explicit",
        "--load-model=*",
    ];
    let mut server = Server::start(folder.path(), &options);
    let admin = server.wait_for_line("admin").parse().unwrap();
    server.wait_until_loaded();
    let ask_admin = |method: &str, path: &str| {
        let mut stream = connect(admin);
        send(&mut stream, method, path, &[], b"");
        receive(&mut stream)
    };
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/metrics/"),
        ("GET", "/v2/logging"),
        ("POST", UNLOAD),
    ] {
        let answer = ask(&server, method, path, None);
        assert!(
            answer.status == 403 && error(&answer).contains("--admin-address"),
            "{path}"
        );
        assert_eq!(ask_admin(method, path).status, 200, "{path}");
    }
    // Shared memory is not supported, which only the admin address reveals.
    assert_eq!(
        ask(&server, "GET", "/v2/systemsharedmemory/status", None).status,
        403
    );
    assert_eq!(ask_admin("GET", "/v2/systemsharedmemory/status").status, 501);
    assert_eq!(ask(&server, "GET", "/v2/models/closed/ready", None).status, 200);
    assert_eq!(ask_admin("GET", "/v2/models/closed/ready").status, 200);
    assert_eq!(ask(&server, "GET", "/console/log", None).status, 403);
    assert_eq!(ask_admin("GET", "/console/log").status, 200);
    let unload = RepositoryModelUnloadRequest {
        model_name: "closed".into(),
        ..Default::default()
    };
    let mut on_admin = client_at(format!("http://{admin}")).await;
    assert_eq!(
        code(on_admin.log_settings(LogSettingsRequest::default()).await),
        Code::Ok
    );
    for (mut client, expected) in [
        (client(&server).await, Code::PermissionDenied),
        (on_admin, Code::Ok),
    ] {
        assert_eq!(
            code(client.repository_model_unload(unload.clone()).await),
            expected
        );
    }
    assert_ne!(ask(&server, "GET", "/v2/models/closed/ready", None).status, 200);
}

/// If other machines reach the admin address and clients are not authenticated, it rejects the same calls as
/// other public addresses, unless the option allows them.
#[tokio::test]
async fn a_public_admin_address_needs_identities_too() {
    let folder = two_models();
    let options = |more: &[&'static str]| {
        let control = ["--model-control-mode=explicit", "--load-model=*"];
        [&["--admin-address", "0.0.0.0:0"], &control[..], more].concat()
    };
    let start = |more: &[&'static str]| {
        let mut server = Server::start(folder.path(), &options(more));
        let address: std::net::SocketAddr = server.wait_for_line("admin").parse().unwrap();
        server.wait_until_loaded();
        let admin = std::net::SocketAddr::from(([127, 0, 0, 1], address.port()));
        (server, admin)
    };
    let ask_admin = |admin, method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut stream = connect(admin);
        send(&mut stream, method, path, headers, b"");
        receive(&mut stream)
    };
    let unload = RepositoryModelUnloadRequest {
        model_name: "open".into(),
        ..Default::default()
    };
    let (_server, admin) = start(&[]);
    let answer = ask_admin(admin, "POST", UNLOAD, &[]);
    let message = error(&answer);
    assert_eq!(answer.status, 403, "{message}");
    for advice in [
        "'unload' is refused",
        "only this machine reaches",
        "--auth",
        "--allow-public-admin",
    ] {
        assert!(message.contains(advice), "{message}");
    }
    let mut grpc = client_at(format!("http://{admin}")).await;
    assert_eq!(
        code(grpc.repository_model_unload(unload).await),
        Code::PermissionDenied
    );
    for path in ["/metrics", "/v2/logging", "/v2/models/open/ready"] {
        assert_eq!(ask_admin(admin, "GET", path, &[]).status, 200, "{path}");
    }
    let (_server, admin) = start(&["--allow-public-admin"]);
    assert_eq!(ask_admin(admin, "POST", UNLOAD, &[]).status, 200);
    let (_server, admin) = start(&["--http-restricted-api=model-repository:admin-key=s3cret"]);
    assert_eq!(ask_admin(admin, "POST", UNLOAD, &[]).status, 403);
    assert_eq!(
        ask_admin(admin, "POST", UNLOAD, &[("admin-key", "s3cret")]).status,
        200
    );
}

/// A page whose name resolves to this machine cannot reach a local admin address, even if the other addresses
/// accept all host names.
#[test]
fn web_pages_do_not_reach_a_local_admin_address() {
    let folder = two_models();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command.arg("--model-repository").arg(folder.path()).args([
        "--http-address=0.0.0.0:0",
        "--grpc-address=none",
        "--admin-address=127.0.0.1:0",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut address = |name: &str| -> SocketAddr {
        loop {
            let line = lines.next().unwrap().unwrap();
            if let Some(url) = line.trim().strip_prefix(name) {
                return url.trim().rsplit("://").next().unwrap().parse().unwrap();
            }
        }
    };
    let (public, admin) = (address("HTTP"), address("admin"));
    let status = |to: SocketAddr, host: &str, path: &str| {
        let mut stream = connect(to);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        receive(&mut stream).status
    };
    assert_eq!(status(public, "evil.example.com", "/v2"), 200);
    for path in ["/v2", "/console/log", "/metrics", "/v2/logging"] {
        assert_eq!(status(admin, "evil.example.com", path), 403, "{path}");
        assert_eq!(status(admin, "127.0.0.1", path), 200, "{path}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// An admin socket in the operators' directory, next to public addresses: it has no TLS, and shows the log.
#[cfg(unix)]
#[tokio::test]
async fn the_admin_address_may_be_a_unix_socket() {
    use std::os::unix::net::UnixStream;

    let folder = two_models();
    let certificates = Certificates::new();
    let socket = folder.path().join("admin.sock");
    let address = format!("unix:{}", socket.display());
    let options = certificates.options();
    let more = [
        "--http-address=0.0.0.0:0",
        "--grpc-address=0.0.0.0:0",
        "--admin-address",
        &address,
        "--model-control-mode=explicit",
        "--load-model=*",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command
        .arg("--model-repository")
        .arg(folder.path())
        .args(options.iter().map(String::as_str).chain(more));
    let mut server = Server::spawn(&mut command);
    assert_eq!(server.wait_for_line("admin"), address);
    server.wait_until_loaded();
    let ask_admin = |method: &str, path: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        send(&mut stream, method, path, &[], b"");
        receive(&mut stream)
    };
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/metrics/"),
        ("GET", "/console/log"),
        ("POST", UNLOAD),
    ] {
        let mut stream = encrypted(server.http, &certificates.client(None, b"http/1.1"));
        send(&mut stream, method, path, &[], b"");
        assert_eq!(receive(&mut stream).status, 403, "{path}");
        assert_eq!(ask_admin(method, path).status, 200, "{path}");
    }
    assert_ne!(ask_admin("GET", "/v2/models/open/ready").status, 200);
    let unload = RepositoryModelUnloadRequest {
        model_name: "closed".into(),
        ..Default::default()
    };
    let mut client = client_at(address).await;
    assert_eq!(code(client.repository_model_unload(unload).await), Code::Ok);
    assert_ne!(ask_admin("GET", "/v2/models/closed/ready").status, 200);
}

/// An admin address over TCP uses TLS if the other addresses do.
#[test]
fn the_admin_address_speaks_tls_as_the_others_do() {
    let folder = two_models();
    let certificates = Certificates::new();
    let options = certificates.options();
    let more = ["--admin-address", "127.0.0.1:0"];
    let options: Vec<&str> = options.iter().map(String::as_str).chain(more).collect();
    let mut server = Server::start(folder.path(), &options);
    let admin = server.wait_for_line("admin").parse().unwrap();
    server.wait_until_loaded();
    let mut stream = encrypted(admin, &certificates.client(None, b"http/1.1"));
    send(&mut stream, "GET", "/metrics", &[], b"");
    assert_eq!(receive(&mut stream).status, 200);
    let mut stream = connect(admin);
    send(&mut stream, "GET", "/metrics", &[], b"");
    assert_eq!(receive(&mut stream).status, 400);
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

#[tokio::test]
async fn changes_are_in_the_log_and_secrets_are_not() {
    let folder = two_models();
    let path = folder.path().join("auth.toml");
    let rest = "[identities.reader]\ntoken-sha256 = [\"a2d4e8b7f0c1d3e5a2d4e8b7f0c1d3e5a2d4e8b7f0c1d3e5a2d4e8b7f0c1d3e5\"]\napis = [\"health\"]";
    fs::write(
        &path,
        format!("[identities.boss]\ntoken-sha256 = [\"{SECRET}\"]\napis = [\"*\"]\n{rest}"),
    )
    .unwrap();
    let options = [
        "--auth",
        path.to_str().unwrap(),
        "--model-control-mode=explicit",
        "--load-model=*",
        "--log",
        "debug",
        "--log-format",
        "json",
    ];
    let mut command = command(folder.path(), &options);
    command.stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A JSON log contains the addresses.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut log = Vec::new();
    let mut until = |log: &mut Vec<String>, text: &str| loop {
        let line = lines.next().unwrap().unwrap();
        log.push(line.clone());
        if line.contains(text) {
            return line;
        }
    };
    let listening: serde_json::Value = serde_json::from_str(&until(&mut log, "listening")).unwrap();
    let address = |name: &str| -> std::net::SocketAddr {
        let value = listening["fields"][name].as_str().or(listening[name].as_str());
        value.unwrap_or_else(|| panic!("{listening}")).parse().unwrap()
    };
    let (http, grpc) = (address("http"), address("grpc"));
    until(&mut log, "loaded all models");
    let ask = |token: &str| {
        let mut stream = connect(http);
        let value = format!("Bearer {token}");
        send(&mut stream, "POST", UNLOAD, &[("Authorization", &value)], b"");
        receive(&mut stream).status
    };
    assert_eq!(ask("s3cret"), 200);
    let line = until(&mut log, "audit");
    for part in ["boss", "unload", "open", "200", "done"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(ask("n0t-known"), 401);
    let line = until(&mut log, "audit");
    assert!(line.contains("refused") && line.contains("unknown"), "{line}");
    let endpoint = Endpoint::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap());
    let unload = RepositoryModelUnloadRequest {
        model_name: "closed".into(),
        ..Default::default()
    };
    assert_eq!(
        code(client.repository_model_unload(known(unload)).await),
        Code::Ok
    );
    let line = until(&mut log, "audit");
    assert!(
        line.contains("boss") && line.contains("closed") && line.contains("done"),
        "{line}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let rest = lines.map_while(Result::ok);
    for line in log.into_iter().chain(rest) {
        assert!(
            !line.contains("s3cret") && !line.contains("n0t-known") && !line.contains(SECRET),
            "{line}"
        );
    }
}

/// At the most verbose level, including libraries: no tokens, their digests, JWT keys, or values of
/// restricted headers appear, right or wrong ones, over TLS and both transports; nor are they sent to a
/// collector.
// Clients must continue while the test waits for the server's exit.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn no_level_of_the_log_has_secrets() {
    let (folder, certificates) = (two_models(), Certificates::new());
    let collector = Collector::start(vec![]);
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("keys.json"), keys::set(&key, "one")).unwrap();
    let table = format!(
        "[jwt]\nkeys = \"keys.json\"\nissuer = \"https://issuer\"\naudience = \"models\"\n\
         [identities.boss]\ntoken-sha256 = [\"{SECRET}\"]\njwt = [\"ci\"]\napis = [\"*\"]\n"
    );
    fs::write(at("auth.toml"), table).unwrap();
    let auth = at("auth.toml");
    let config = ConfigFile::new(&format!("otlp-endpoint = {:?}", collector.url));
    let options = certificates.options();
    let more = [
        "--auth",
        &auth,
        &config.option,
        "--http-restricted-api=model-config:the-key=restr1cted",
        "--grpc-restricted-protocol=model-config:the-key=restr1cted",
        "--access-log=json",
        "--log=trace",
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).chain(more).collect();
    let log = at("server.log");
    let mut command = command(folder.path(), &options);
    command
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=t3lemetry")
        .stderr(fs::File::create(&log).unwrap());
    let mut server = Server::spawn(&mut command);
    server.wait_until_loaded();

    let (good, expired) = (keys::token(&key, "one", 60), keys::token(&key, "one", -60));
    let config = certificates.client(None, b"http/1.1");
    for (token, restricted, status) in [
        ("s3cret", "restr1cted", 200),
        (&*good, "restr1cted", 200),
        (&*expired, "restr1cted", 401),
        ("n0t-known", "restr1cted", 401),
        ("s3cret", "wr0ng-value", 403),
    ] {
        let bearer = format!("Bearer {token}");
        let mut stream = encrypted(server.http, &config);
        let headers = [("Authorization", bearer.as_str()), ("the-key", restricted)];
        send(&mut stream, "GET", "/v2/models/open/config", &headers, b"");
        assert_eq!(receive(&mut stream).status, status, "{token} {restricted}");
        let client = oip_client::builder(format!("grpcs://localhost:{}", server.grpc.port()))
            .authorities(fs::read(certificates.path("ca.pem")).unwrap())
            .header("authorization", bearer)
            .header("triton-grpc-protocol-the-key", restricted)
            .build()
            .unwrap();
        let model = ModelRef::new("open", None).unwrap();
        let answer = client.model_config(model).await;
        assert_eq!(answer.is_ok(), status == 200, "{token} {restricted}");
        if status == 200 {
            client.infer(&InferRequest::new(model)).await.unwrap();
        }
    }
    assert!(collector.message().head.contains("x-api-key: t3lemetry"));
    server.signal("TERM");
    server.wait(Duration::from_secs(30));
    let text = fs::read_to_string(&log).unwrap();
    // Libraries must log too, or the test proves nothing.
    for speaker in ["TRACE", "rustls", "h2::", "ureq::"] {
        assert!(text.contains(speaker), "{speaker}");
    }
    let signature = |token: &str| token.rsplit('.').next().unwrap().to_owned();
    let secrets = [
        "s3cret",
        SECRET,
        "n0t-known",
        "restr1cted",
        "wr0ng-value",
        "t3lemetry",
    ];
    let secrets = secrets.map(str::to_owned).into_iter();
    for secret in secrets.chain([signature(&good), signature(&expired), good, expired]) {
        let line = text.lines().find(|line| line.contains(&secret));
        assert_eq!(line, None, "{secret}");
    }
}

/// The access log names the identity of each authenticated client, even if the call is rejected.
#[tokio::test]
async fn the_access_log_names_identities() {
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("access.log");
    let options = ["--access-log=json", "--access-log-file", log.to_str().unwrap()];
    let (server, _folder) = server(&table(), &options);
    for (id, path, token) in [
        ("known", "/v2/models/open", Some("s3cret")),
        ("refused", "/v2/models/closed", Some("s3cret")),
        ("unknown", "/v2/models/open", Some("wrong")),
        ("nameless", "/v2/health/ready", None),
    ] {
        let token = token.map(|token| format!("Bearer {token}"));
        let headers = token.iter().map(|token| ("Authorization", token.as_str()));
        let headers: Vec<_> = headers.chain([("X-Request-ID", id)]).collect();
        server.request("GET", path, &headers, b"");
    }
    let mut client = client(&server).await;
    let mut request = known(ModelMetadataRequest {
        name: "open".into(),
        ..Default::default()
    });
    request
        .metadata_mut()
        .insert("x-request-id", "grpc".parse().unwrap());
    client.model_metadata(request).await.unwrap();
    for (id, identity) in [
        ("known", Some("ci")),
        ("refused", Some("ci")),
        ("unknown", None),
        ("nameless", Some("anonymous")),
        ("grpc", Some("ci")),
    ] {
        let found = line(&log, |line| line["request_id"] == id);
        assert_eq!(found["identity"].as_str(), identity, "{found}");
    }
    assert!(!fs::read_to_string(&log).unwrap().contains("s3cret"));
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
        // Scripts can read errors too.
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
