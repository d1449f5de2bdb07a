//! The audit and access logs: identities are named, secrets are not.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
    time::Duration,
};

use oip_grpc::proto::{
    ModelMetadataRequest, RepositoryModelUnloadRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
};
use oip_telemetry::testing::Collector;
use oip_types::{InferRequest, ModelRef};
use rcgen::{KeyPair, PKCS_ED25519};
use tonic::{Code, transport::Endpoint};

use crate::{
    access::{SECRET, UNLOAD, client, code, known, server, table, two_models},
    keys,
    support::{ConfigFile, Server, command, connect, receive, send},
    tls::{Certificates, encrypted},
    traffic::line,
};

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
    // The JSON log contains the server's addresses.
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

/// Checks that even at the most verbose level, which includes messages of libraries, the log contains no
/// secrets: tokens, their digests, JWTs, or values of restricted headers and of the collector's headers,
/// whether right or wrong. The clients use TLS and both transports.
// Clients must keep running while the test waits for the server to exit.
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
