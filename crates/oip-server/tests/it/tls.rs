//! Tests the server process with TLS options.

use std::{
    fs, io,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use oip_client::{ClientError, InferenceClient};
use oip_types::{ErrorCode, InferRequest, LoadOptions, ModelRef, UnloadOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tempfile::TempDir;
use tonic::codegen::tokio_stream::{self, StreamExt};

use crate::{
    access::two_models,
    metrics::until,
    support::{Server, TestResponse, command, connect, failing, receive, send, try_receive},
    traffic::line,
};

/// A CA, and a directory with certificates that it issued.
pub(crate) struct Certificates {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Returns a TLS configuration with `server.pem` for a server in the test.
    pub(crate) fn server_config(&self) -> ServerConfig {
        let chain = CertificateDer::from_pem_file(self.path("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path("server-key.pem")).unwrap();
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap()
    }

    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let certificates = Self {
            folder: tempfile::tempdir().unwrap(),
            authority,
        };
        fs::write(certificates.path("ca.pem"), certificates.authority.pem()).unwrap();
        certificates.sign("server", &["localhost"]);
        certificates
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Issues a certificate for these hosts, with its key.
    pub(crate) fn sign(&self, name: &str, hosts: &[&str]) {
        let hosts: Vec<String> = hosts.iter().copied().map(str::to_owned).collect();
        self.sign_as(name, &CertificateParams::new(hosts).unwrap());
    }

    fn sign_as(&self, name: &str, params: &CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority);
        fs::write(self.path(&format!("{name}.pem")), certificate.unwrap().pem()).unwrap();
        fs::write(self.path(&format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }

    /// Returns the options of a server with TLS.
    pub(crate) fn options(&self) -> Vec<String> {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        vec![
            "--tls-certificate".to_owned(),
            path("server.pem"),
            "--tls-key".to_owned(),
            path("server-key.pem"),
        ]
    }

    /// Creates a client for `https://` or `grpcs://` that trusts the CA, with the client certificate `name`.
    fn caller(&self, scheme: &str, address: SocketAddr, name: &str) -> Box<dyn InferenceClient> {
        let read = |name: &str| fs::read(self.path(name)).unwrap();
        let url = format!("{scheme}://localhost:{}", address.port());
        oip_client::builder(url)
            .authorities(read("ca.pem"))
            .certificate(read(&format!("{name}.pem")), read(&format!("{name}-key.pem")))
            .build()
            .unwrap()
    }

    /// Creates TLS settings that trust the CA, with an optional client certificate.
    pub(crate) fn client(&self, name: Option<&str>, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap())
            .unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let certificate = CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}-key.pem"))).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }
}

pub(crate) type Encrypted = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn encrypted(address: SocketAddr, config: &Arc<ClientConfig>) -> Encrypted {
    let session = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(session, connect(address))
}

fn get(address: SocketAddr, config: &Arc<ClientConfig>, path: &str) -> io::Result<TestResponse> {
    let mut stream = encrypted(address, config);
    stream.conn.complete_io(&mut stream.sock)?;
    send(&mut stream, "GET", path, &[], b"");
    try_receive(&mut stream)
}

fn start(certificates: &Certificates, more: &[&str]) -> (Server, TempDir) {
    let repository = tempfile::tempdir().unwrap();
    let options = certificates.options();
    let options: Vec<&str> = options
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    (Server::start(repository.path(), &options), repository)
}

#[test]
fn both_transports_are_encrypted() {
    let certificates = Certificates::new();
    let (server, _repository) = start(&certificates, &[]);
    let config = certificates.client(None, b"http/1.1");
    let mut stream = encrypted(server.http, &config);
    send(&mut stream, "GET", "/v2", &[], b"");
    assert_eq!(receive(&mut stream).json()["name"], "tensorferry");

    // A request without TLS only gets an error.
    let answer = server.get("/v2");
    assert_eq!(
        (answer.status, answer.json()["error"].as_str().unwrap()),
        (400, "this port speaks TLS: use https:// to call it")
    );

    for address in [server.http, server.grpc] {
        let (path, body) = match address == server.grpc {
            true => ("/inference.GRPCInferenceService/ServerLive", &[0; 5][..]),
            false => ("/v2/health/live", &[][..]),
        };
        let (status, answer) = over_http2(&certificates, address, path, body);
        assert_eq!(status, 200);
        match address == server.grpc {
            // A message with its only field, `live`, set.
            true => assert_eq!(answer, [0, 0, 0, 0, 2, 8, 1]),
            false => assert_eq!(answer, br#"{"live":true}"#),
        }
    }
}

/// Sends a request over TLS and HTTP/2: a GET without a body, or a POST in the style of gRPC with one.
fn over_http2(
    certificates: &Certificates,
    address: SocketAddr,
    path: &str,
    body: &'static [u8],
) -> (u16, Vec<u8>) {
    let connector = tokio_rustls::TlsConnector::from(certificates.client(None, b"h2"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let exchange = async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let stream = connector
            .connect("localhost".try_into().unwrap(), stream)
            .await
            .unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::builder()
            .method(if body.is_empty() { "GET" } else { "POST" })
            .uri(format!("https://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (answer, mut sender) = client.send_request(request, body.is_empty()).unwrap();
        if !body.is_empty() {
            sender.send_data(Bytes::from_static(body), true).unwrap();
        }
        let (head, mut body) = answer.await.unwrap().into_parts();
        let mut bytes = Vec::new();
        while let Some(piece) = body.data().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        (head.status.as_u16(), bytes)
    };
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(30), exchange).await })
        .unwrap()
}

#[test]
fn clients_need_a_certificate_of_the_authority() {
    let (certificates, strangers) = (Certificates::new(), Certificates::new());
    certificates.sign("robot", &["robot"]);
    strangers.sign("robot", &["robot"]);
    let authority = certificates.path("ca.pem");
    let log = certificates.path("access.log");
    let options = [
        "--tls-client-ca",
        authority.to_str().unwrap(),
        "--access-log=json",
        "--access-log-file",
        log.to_str().unwrap(),
    ];
    let (server, _repository) = start(&certificates, &options);
    let known = certificates.client(Some("robot"), b"http/1.1");
    assert_eq!(get(server.http, &known, "/v2/health/live").unwrap().status, 200);
    // Without an identity table, clients are named by their certificate.
    let logged = line(&log, |line| line["code"] == 200);
    assert_eq!(logged["identity"], "dns:robot");
    fs::copy(strangers.path("robot.pem"), certificates.path("stranger.pem")).unwrap();
    fs::copy(
        strangers.path("robot-key.pem"),
        certificates.path("stranger-key.pem"),
    )
    .unwrap();
    for (name, alert) in [(None, "CertificateRequired"), (Some("stranger"), "alert")] {
        let error = get(server.http, &certificates.client(name, b"http/1.1"), "/v2")
            .err()
            .unwrap();
        assert!(error.to_string().contains(alert), "{error}");
    }
}

/// An identity table with certificate names.
const ROBOTS: &str = "[identities.robots]\ncertificates = [\"uri:spiffe://example.com/robots/*\"]\n\
                      apis = [\"inference\"]\nmodels = [\"op*\"]\n\
                      [identities.boss]\ncertificates = [\"dns:boss.example.com\"]\napis = [\"*\"]\n";

/// A certificate's name identifies a client, on both transports, on a stream and at the admin address.
#[tokio::test]
async fn certificates_are_identities() {
    let certificates = Certificates::new();
    let spiffe = |id: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let id = format!("spiffe://example.com/{id}");
        params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        params
    };
    certificates.sign_as("robot", &spiffe("robots/7"));
    certificates.sign_as("person", &spiffe("people/7"));
    certificates.sign("boss", &["boss.example.com"]);
    let repository = two_models();
    let table = certificates.path("auth.toml");
    fs::write(&table, ROBOTS).unwrap();
    let log = certificates.path("server.log");
    let authority = certificates.path("ca.pem");
    let options = certificates.options();
    let more = [
        "--tls-client-ca",
        authority.to_str().unwrap(),
        "--auth",
        table.to_str().unwrap(),
        "--model-control-mode=explicit",
        "--load-model=*",
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).chain(more).collect();
    let mut command = command(repository.path(), &options);
    let mut server = Server::spawn(command.stderr(fs::File::create(&log).unwrap()));
    server.wait_until_loaded();

    let model = |name| ModelRef::new(name, None).unwrap();
    let request = |name| InferRequest::new(model(name));
    for (scheme, address) in [("https", server.http), ("grpcs", server.grpc)] {
        let robot = certificates.caller(scheme, address, "robot");
        robot.infer(&request("open")).await.unwrap();
        let refused = |error: ClientError| (error.code().unwrap(), error.message().to_owned());
        let denied = |message: &str| (ErrorCode::PermissionDenied, message.to_owned());
        assert_eq!(
            refused(robot.infer(&request("closed")).await.unwrap_err()),
            denied("identity 'robots' may not use model 'closed'"),
            "{scheme}"
        );
        assert_eq!(
            refused(robot.model_metadata(model("open")).await.unwrap_err()),
            denied("identity 'robots' may not use the API 'metadata'"),
            "{scheme}"
        );
        let unload = UnloadOptions::default();
        assert_eq!(
            refused(robot.unload_model("open", unload).await.unwrap_err()).0,
            ErrorCode::PermissionDenied,
            "{scheme}"
        );
        // This certificate is signed by the CA, but not in the table.
        let person = certificates.caller(scheme, address, "person");
        let (code, message) = refused(person.infer(&request("open")).await.unwrap_err());
        assert_eq!(code, ErrorCode::Unauthenticated, "{scheme}");
        assert!(message.contains("or a known certificate"), "{message}");
        let boss = certificates.caller(scheme, address, "boss");
        boss.unload_model("closed", unload).await.unwrap();
        boss.load_model("closed", &LoadOptions::default()).await.unwrap();
    }
    let robot = certificates.caller("grpcs", server.grpc, "robot");
    let requests = tokio_stream::iter([request("open"), request("closed"), request("open")]);
    let answers = robot.infer_stream(Box::pin(requests)).await.unwrap();
    let answers: Vec<bool> = answers.map(|answer| answer.is_ok()).collect().await;
    assert_eq!(answers, [true, false, true]);

    // The audit log names the clients that changed something, and those that were rejected, by certificate.
    for parts in [
        [
            "refused",
            "change=\"unload\"",
            "robots",
            "spiffe://example.com/robots/7",
        ],
        ["done", "change=\"unload\"", "closed", "dns:boss.example.com"],
        ["done", "change=\"load\"", "closed", "dns:boss.example.com"],
    ] {
        until("both transports have their audit line", || {
            let text = fs::read_to_string(&log).unwrap();
            let lines = text.lines().filter(|line| line.contains("audit"));
            let found = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
            found.count() == 2
        });
    }
}

/// A problem with a certificate's dates is logged with file and line, but the server starts.
#[test]
fn certificates_that_are_not_valid_now_are_warned_of() {
    let certificates = Certificates::new();
    let hours = |count: u64| Duration::from_secs(count * 60 * 60);
    let sign = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        change(&mut params);
        certificates.sign_as("server", &params);
    };
    let now = SystemTime::now();
    let log = certificates.path("server.log");
    for (change, warning, is_believed) in [
        (
            &(|params: &mut CertificateParams| params.not_after = (now - hours(1)).into())
                as &dyn Fn(&mut CertificateParams),
            "a certificate has expired",
            false,
        ),
        (
            &|params| params.not_before = (now + hours(1)).into(),
            "a certificate is not valid yet",
            false,
        ),
        (
            &|params| params.not_after = (now + hours(13 * 24)).into(),
            "a certificate expires soon",
            true,
        ),
    ] {
        sign(change);
        let repository = tempfile::tempdir().unwrap();
        let options = certificates.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mut command = command(repository.path(), &options);
        let mut server = Server::spawn(command.stderr(fs::File::create(&log).unwrap()));
        server.wait_until_loaded();
        until(warning, || fs::read_to_string(&log).unwrap().contains(warning));
        let text = fs::read_to_string(&log).unwrap();
        let line = text.lines().find(|line| line.contains(warning)).unwrap();
        assert!(
            line.contains("WARN") && line.contains("server.pem") && line.contains("line=1"),
            "{line}"
        );
        let answer = get(server.http, &certificates.client(None, b"http/1.1"), "/v2");
        assert_eq!(answer.is_ok(), is_believed, "{warning}");
    }
}

#[test]
fn a_changed_certificate_is_shown_and_open_connections_stay() {
    let certificates = Certificates::new();
    let (server, _repository) = start(&certificates, &[]);
    let config = certificates.client(None, b"http/1.1");
    let mut stream = encrypted(server.http, &config);
    let mut ask = || {
        send(&mut stream, "GET", "/v2/health/live", &[], b"");
        assert_eq!(receive(&mut stream).status, 200);
    };
    ask();
    certificates.sign("server", &["localhost"]);
    let expected = CertificateDer::from_pem_file(certificates.path("server.pem")).unwrap();
    let begin = Instant::now();
    loop {
        let mut other = encrypted(server.http, &config);
        other.conn.complete_io(&mut other.sock).unwrap();
        if other.conn.peer_certificates().unwrap()[0] == expected {
            break;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "the new certificate is never shown"
        );
        std::thread::sleep(Duration::from_millis(100));
        ask();
    }
    ask();
}

#[test]
fn wrong_files_and_options_are_told_before_anything_is_opened() {
    let certificates = Certificates::new();
    certificates.sign("other", &["localhost"]);
    let repository = tempfile::tempdir().unwrap();
    let repository = repository.path().to_str().unwrap();
    let path = |name: &str| certificates.path(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("server.pem"), path("server-key.pem"));
    let (nowhere, other) = (path("nowhere.pem"), path("other-key.pem"));
    for (options, message) in [
        (
            vec!["--tls-certificate", &certificate],
            "--tls-certificate needs --tls-key".to_owned(),
        ),
        (
            vec!["--tls-key", &key],
            "--tls-key needs --tls-certificate".to_owned(),
        ),
        (
            vec!["--tls-client-ca", &certificate],
            "--tls-client-ca needs --tls-certificate and --tls-key".to_owned(),
        ),
        (
            vec!["--tls-certificate", &certificate, "--tls-key", &nowhere],
            format!("--tls-key: {nowhere}: cannot be read: No such file or directory (os error 2)"),
        ),
        (
            vec!["--tls-certificate", &certificate, "--tls-key", &other],
            format!("--tls-key: {other}: this key does not belong to the first certificate of {certificate}"),
        ),
        (
            vec!["--tls-certificate", &key, "--tls-key", &key],
            format!(
                "--tls-certificate: {key}: line 1: expected a certificate (BEGIN CERTIFICATE), found a private key"
            ),
        ),
    ] {
        for first in [None, Some("check")] {
            let begin = ["--model-repository", repository];
            let arguments: Vec<&str> = first
                .into_iter()
                .chain(begin)
                .chain(options.iter().copied())
                .collect();
            let (code, line) = failing(&arguments);
            assert_eq!((code, line), (2, message.clone()), "{arguments:?}");
        }
    }
}
