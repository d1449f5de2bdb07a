//! A single port for everything, Unix sockets, ports set by platforms, and signals from systemd and
//! operators.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use axum::http::Request;
use oip_grpc::proto::{ServerLiveRequest, grpc_inference_service_client::GrpcInferenceServiceClient};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use tonic::transport::Endpoint;

use crate::{
    metrics::rows,
    support::{Server, failing, receive, send},
    tls::{Certificates, encrypted},
};

/// Returns the command for a server with an empty repository and only the options `arguments`.
fn command(repository: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command
        .arg("--model-repository")
        .arg(repository)
        .args(arguments)
        .env_clear();
    command
}

/// Returns whether a server is live, over gRPC.
async fn is_live(endpoint: String) -> bool {
    let endpoint = Endpoint::from_shared(endpoint).unwrap();
    let mut client = GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap());
    let answer = client.server_live(ServerLiveRequest {}).await.unwrap();
    answer.into_inner().live
}

/// Sends a GET over HTTP/2 without TLS; returns status and body.
async fn get_over_http2(address: std::net::SocketAddr, path: &str) -> (u16, Vec<u8>) {
    get_over_http2_with(address, path, 0).await
}

/// Sends a GET like [`get_over_http2`], with a header of `bytes`.
async fn get_over_http2_with(address: std::net::SocketAddr, path: &str, bytes: usize) -> (u16, Vec<u8>) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(format!("http://{address}{path}")).header("large", "a".repeat(bytes));
    let request = request.body(()).unwrap();
    let (answer, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    let answer = answer.await.unwrap();
    let (status, mut body) = (answer.status().as_u16(), answer.into_body());
    let mut read = Vec::new();
    while let Some(piece) = body.data().await {
        read.extend_from_slice(&piece.unwrap());
    }
    (status, read)
}

// Clients must keep running while the test waits for the server to exit.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_port_answers_everything() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::spawn(&mut command(folder.path(), &["--address", "127.0.0.1:0"]));
    assert_eq!(server.http, server.grpc);
    server.wait_until_loaded();
    for path in ["/v2/health/live", "/livez", "/readyz", "/ping"] {
        assert_eq!(server.get(path).status, 200, "{path}");
        assert_eq!(get_over_http2(server.http, path).await.0, 200, "{path}");
    }
    let metadata = server.get("/v2").body;
    assert_eq!(get_over_http2(server.http, "/v2").await, (200, metadata));
    let (status, body) = get_over_http2(server.http, "/v2/models/nothing").await;
    assert_eq!(status, 404);
    assert!(String::from_utf8(body).unwrap().starts_with("{\"error\":"));
    assert!(is_live(format!("http://{}", server.http)).await);
    // HTTP/1 requests are never gRPC, whatever their content type.
    let headers = [("Content-Type", "application/grpc")];
    let answer = server.request(
        "POST",
        "/inference.GRPCInferenceService/ServerLive",
        &headers,
        b"x",
    );
    assert_eq!(answer.status, 404);
    server.signal("TERM");
    assert_eq!(server.wait(Duration::from_secs(20)).code(), Some(0));
}

/// Header limits are the same for both HTTP versions, and errors are JSON in both.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn headers_have_the_same_limit_in_both_versions_of_http() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::spawn(&mut command(folder.path(), &["--address", "127.0.0.1:0"]));
    server.wait_until_loaded();
    for (bytes, expected) in [(9 << 10, 200), (31 << 10, 200), (33 << 10, 431), (48 << 10, 431)] {
        let (status, body) = get_over_http2_with(server.http, "/v2", bytes).await;
        let answer = server.request("GET", "/v2", &[("large", &"a".repeat(bytes))], b"");
        assert_eq!((status, answer.status), (expected, expected), "{bytes}");
        for body in [&body, &answer.body] {
            let json: serde_json::Value = serde_json::from_slice(body).unwrap();
            let is_limit = json["error"]
                .as_str()
                .is_some_and(|error| error.contains("bytes, the limit is 32768"));
            assert_eq!(is_limit, expected == 431, "{json}");
        }
    }
}

/// Checks that with two ports, the HTTP port accepts no HTTP/2 without TLS.
#[tokio::test]
async fn two_ports_speak_one_protocol_each() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_ne!(server.http, server.grpc);
    let stream = tokio::net::TcpStream::connect(server.http).await.unwrap();
    let spoken = async {
        let (client, connection) = h2::client::handshake(stream).await?;
        let answering = async {
            let request = Request::get("http://x/v2").body(()).unwrap();
            client.ready().await?.send_request(request, true)?.0.await
        };
        tokio::select! {
            ended = connection => ended.map(|()| None),
            answer = answering => answer.map(Some),
        }
    };
    assert!(!matches!(spoken.await, Ok(Some(_))));
}

#[test]
fn a_transport_can_be_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, shown) in [
        (
            ["--http-address", "127.0.0.1:0", "--grpc-address", "none"],
            "HTTP",
        ),
        (
            ["--http-address", "none", "--grpc-address", "127.0.0.1:0"],
            "gRPC",
        ),
    ] {
        let mut child = command(folder.path(), &arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = printed_until_loaded(&mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        let other = if shown == "HTTP" { "gRPC  " } else { "HTTP  " };
        assert!(
            printed.contains(&format!("  {shown}  ")) && !printed.contains(other),
            "{printed}"
        );
    }
    let nowhere = ["--model-repository", folder.path().to_str().unwrap()];
    let (code, line) = failing(&[&nowhere[..], &["--http-address=none", "--grpc-address=none"]].concat());
    assert!(code == 2 && line.starts_with("no address to listen on"), "{line}");
}

/// Returns the output until all models are loaded.
fn printed_until_loaded(child: &mut Child) -> String {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    while !printed.contains(" after ") {
        assert!(stdout.read_line(&mut printed).unwrap() > 0, "{printed}");
    }
    printed
}

#[cfg(unix)]
#[tokio::test]
async fn unix_sockets_carry_both_transports() {
    use std::os::unix::{fs::PermissionsExt, net::UnixStream};

    let folder = tempfile::tempdir().unwrap();
    let [http, grpc] = ["http.sock", "grpc.sock"].map(|name| folder.path().join(name));
    let [http_address, grpc_address] = [&http, &grpc].map(|path| format!("unix:{}", path.display()));
    let models = folder.path().join("models");
    fs::create_dir(&models).unwrap();
    let arguments = [
        "--http-address",
        &http_address,
        "--grpc-address",
        &grpc_address,
        "--unix-socket-mode",
        "600",
    ];
    // The server starts twice, with a kill in between, so a stale socket is replaced.
    for signal in ["KILL", "TERM"] {
        let mut child = command(&models, &arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = printed_until_loaded(&mut child);
        assert!(
            printed.contains(&format!("  HTTP     {http_address}\n")),
            "{printed}"
        );
        let mut stream = UnixStream::connect(&http).unwrap();
        stream
            .write_all(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(is_live(grpc_address.clone()).await);
        assert_eq!(fs::metadata(&grpc).unwrap().permissions().mode() & 0o777, 0o600);
        if signal == "KILL" {
            // A second server does not touch the first one's sockets.
            let output = command(&models, &arguments).output().unwrap();
            let line = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{line}");
            let expected =
                format!("error: cannot listen on {http_address} for HTTP: another process listens there");
            assert!(line.contains(&expected), "{line}");
            assert!(UnixStream::connect(&http).is_ok());
        }
        let id = child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &id])
                .status()
                .unwrap()
                .success()
        );
        child.wait().unwrap();
    }
    assert!(!http.exists() && !grpc.exists());
}

/// Checks that the port comes from the variables of Knative, Cloud Run and Vertex AI, unless an option sets
/// it.
#[tokio::test]
async fn ports_of_platforms_count_where_no_option_says_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    for variable in ["PORT", "AIP_HTTP_PORT"] {
        let server = Server::spawn(command(folder.path(), &[]).env(variable, "0"));
        assert!(server.http.ip().is_unspecified() && server.http == server.grpc);
        let address = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, server.http.port()));
        assert!(is_live(format!("http://{address}")).await);
    }
    let mut told = command(folder.path(), &["--address", "127.0.0.1:0"]);
    let server = Server::spawn(told.env("PORT", "0"));
    assert!(server.http.ip().is_loopback());
    let output = command(folder.path(), &[]).env("PORT", "x").output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        line,
        "error: PORT in the environment: expected a port, found 'x' (--address overrides it)\n"
    );
}

/// Hosting platforms' paths call the server's only model; the identity table applies to them as it does to
/// their targets.
#[test]
fn paths_of_platforms_reach_the_only_model() {
    let folder = tempfile::tempdir().unwrap();
    let (model, table) = (folder.path().join("mnt"), folder.path().join("auth.toml"));
    fs::create_dir(&model).unwrap();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors");
    fs::copy(example, model.join("model.safetensors")).unwrap();
    let identity = |name: &str, group: &str, models: &str| {
        let digest = sha256(name);
        format!(
            "[identities.{name}]\ntoken-sha256 = [\"{digest}\"]\napis = [\"{group}\"]\nmodels = [\"{models}\"]\n"
        )
    };
    let text = identity("caller", "inference", "shop-*")
        + &identity("reader", "metadata", "*")
        + &identity("other", "inference", "other");
    fs::write(&table, text + "[anonymous]\napis = [\"health\"]\n").unwrap();
    let arguments = [
        "--address",
        "127.0.0.1:0",
        "--model-name",
        "shop-digits",
        "--auth",
        table.to_str().unwrap(),
    ];
    let mut command = command(&model, &arguments);
    command
        .env("AIP_HEALTH_ROUTE", "/healthy")
        .env("AIP_PREDICT_ROUTE", "/predict");
    let mut server = Server::spawn(&mut command);
    server.wait_until_loaded();
    let ask = |method: &str, path: &str, token: Option<&str>, body: &str| {
        let value = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = value
            .iter()
            .map(|value| ("Authorization", value.as_str()))
            .collect();
        server.request(method, path, &headers, body.as_bytes())
    };
    let (v2, v1) = (
        rows(&[1, 2]).to_string(),
        r#"{"instances": [{"mean.rows": 1}, {"mean.rows": 2}]}"#,
    );
    // The identity table's rules apply to the configured name, not the directory's.
    for (path, status) in [
        ("/v2/models/shop-digits/infer", 200),
        ("/v2/models/mnt/infer", 403),
    ] {
        assert_eq!(ask("POST", path, Some("caller"), &v2).status, status, "{path}");
    }
    assert_eq!(
        ask("GET", "/v2/models", Some("reader"), "").json()["models"],
        serde_json::json!(["shop-digits"])
    );
    let direct = ask("POST", "/v2/models/shop-digits/infer", Some("caller"), &v2).json();
    for (path, body) in [("/invocations", v2.as_str()), ("/predict", v1)] {
        let answer = ask("POST", path, Some("caller"), body);
        assert_eq!(answer.status, 200, "{path}");
        let answer = answer.json();
        if path == "/invocations" {
            assert_eq!(
                (&answer["model_name"], &answer["outputs"]),
                (&"shop-digits".into(), &direct["outputs"])
            );
        } else {
            assert_eq!(answer["predictions"].as_array().unwrap().len(), 2, "{answer}");
        }
        for (token, status, message) in [
            (
                Some("reader"),
                403,
                "identity 'reader' may not use the API 'inference'",
            ),
            (
                Some("other"),
                403,
                "identity 'other' may not use model 'shop-digits'",
            ),
            (None, 403, "identity 'anonymous' may not use the API 'inference'"),
            (Some("nobody"), 401, "the token is not known"),
        ] {
            let answer = ask("POST", path, token, body);
            let found = answer.json()["error"].clone();
            assert_eq!(
                (answer.status, found.as_str().unwrap()),
                (status, message),
                "{path}"
            );
        }
    }
    for path in ["/healthy", "/ping"] {
        assert_eq!(ask("GET", path, None, "").status, 200, "{path}");
    }
}

fn sha256(token: &str) -> String {
    let digest = Sha256::digest(token);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(unix)]
#[test]
fn systemd_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let systemd = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let models = folder.path().join("models");
    fs::create_dir(&models).unwrap();
    let mut command = command(&models, &["--address", "127.0.0.1:0"]);
    let mut server = Server::spawn(command.env("NOTIFY_SOCKET", &path));
    let told = || {
        let mut state = [0; 200];
        let len = systemd.recv(&mut state).unwrap();
        String::from_utf8(state[..len].to_vec()).unwrap()
    };
    assert_eq!(told(), "READY=1\nSTATUS=0 of 0 model versions are ready");
    server.signal("TERM");
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(server.wait(Duration::from_secs(20)).code(), Some(0));
}

/// SIGHUP reloads the log levels from the configuration file; an invalid file changes nothing.
#[test]
fn hangups_reload_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (models, config) = (folder.path().join("models"), folder.path().join("server.toml"));
    fs::create_dir(&models).unwrap();
    fs::write(&config, "log = \"warn\"").unwrap();
    let arguments = ["--address", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let mut command = command(&models, &arguments);
    let mut server = Server::spawn(command.stderr(Stdio::piped()));
    server.wait_until_loaded();
    let mut log = BufReader::new(server.child.stderr.take().unwrap());
    let mut wait_for = |text: &str| loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the log ended");
        if line.contains(text) {
            return line;
        }
    };
    let is_info = |server: &Server| server.get("/v2/logging").json()["log_info"].clone();
    assert_eq!(is_info(&server), false);
    fs::write(&config, "log = \"info\"").unwrap();
    server.signal("HUP");
    wait_for("reloaded");
    assert_eq!(is_info(&server), true);
    fs::write(&config, "log = \"chatty!!\"").unwrap();
    server.signal("HUP");
    let line = wait_for("not reloaded");
    assert!(line.contains("expected a level"), "{line}");
    assert_eq!(is_info(&server), true);
}

/// SIGHUP reloads certificates and the identity table; invalid files change nothing, and are reported each
/// time.
#[test]
fn hangups_reload_certificates_and_identities() {
    let certificates = Certificates::new();
    let folder = tempfile::tempdir().unwrap();
    let (models, table) = (folder.path().join("models"), folder.path().join("auth.toml"));
    fs::create_dir(&models).unwrap();
    let write_table = |token: &str| {
        let digest = sha256(token);
        let text = format!("[identities.ci]\ntoken-sha256 = [\"{digest}\"]\napis = [\"*\"]\n");
        fs::write(&table, text).unwrap();
    };
    write_table("first");
    let options = certificates.options();
    let options = options.iter().map(String::as_str);
    let more = ["--address", "127.0.0.1:0", "--auth", table.to_str().unwrap()];
    let mut command = command(&models, &options.chain(more).collect::<Vec<_>>());
    let mut server = Server::spawn(command.stderr(Stdio::piped()));
    server.wait_until_loaded();
    let mut log = BufReader::new(server.child.stderr.take().unwrap());
    let mut wait_for = |parts: &[&str]| loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the log ended");
        if parts.iter().all(|part| line.contains(part)) {
            return line;
        }
    };
    let client = certificates.client(None, b"http/1.1");
    let ask = |token: &str| {
        let mut stream = encrypted(server.http, &client);
        let value = format!("Bearer {token}");
        send(&mut stream, "GET", "/v2", &[("Authorization", &value)], b"");
        let status = receive(&mut stream).status;
        (status, stream.conn.peer_certificates().unwrap()[0].clone())
    };
    let on_disk = || CertificateDer::from_pem_file(certificates.path("server.pem")).unwrap();
    assert_eq!(ask("first"), (200, on_disk()));

    certificates.sign("server", &["localhost"]);
    write_table("second");
    server.signal("HUP");
    // Only SIGHUP logs these lines; the periodic check logs others.
    wait_for(&[" reloaded", "certificates"]);
    wait_for(&[" reloaded", "identities"]);
    let shown = on_disk();
    assert_eq!((ask("first").0, ask("second")), (401, (200, shown.clone())));

    fs::write(certificates.path("server-key.pem"), "nothing").unwrap();
    fs::write(&table, "nothing").unwrap();
    for _ in 0..2 {
        server.signal("HUP");
        let line = wait_for(&["not reloaded", "certificates"]);
        assert!(line.contains("server-key.pem: expected PEM text"), "{line}");
        let line = wait_for(&["not reloaded", "identities"]);
        assert!(line.contains("auth.toml, line 1"), "{line}");
        assert_eq!((ask("first").0, ask("second")), (401, (200, shown.clone())));
    }
}
