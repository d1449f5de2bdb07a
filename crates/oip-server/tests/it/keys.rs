//! Tests JSON Web Tokens whose keys are at a URL: over TLS with a private CA, and unreachable.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use oip_types::{ErrorCode, ModelRef};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SigningKey};
use rustls::{ServerConnection, StreamOwned};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    metrics::{Page, until},
    support::{Server, TestResponse, command, failing},
    tls::Certificates,
};

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn set(key: &KeyPair, kid: &str) -> String {
    json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": encode(key.der_bytes())}]}).to_string()
}

pub(crate) fn token(key: &KeyPair, kid: &str, lasts: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let claims = json!({"iss": "https://issuer", "aud": "models", "sub": "ci", "exp": now + lasts});
    let message = format!(
        "{}.{}",
        encode(json!({"alg": "EdDSA", "kid": kid}).to_string()),
        encode(claims.to_string())
    );
    format!("{message}.{}", encode(key.sign(message.as_bytes()).unwrap()))
}

/// An issuer's server, which returns the current key set.
struct Issuer {
    set: Arc<Mutex<String>>,
    address: SocketAddr,
}

impl Issuer {
    fn start(listener: TcpListener, certificates: &Certificates, set: String) -> Self {
        let (address, set) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(set)));
        let config = certificates.server_config();
        let (config, served) = (Arc::new(config), set.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, served) = (config.clone(), served.clone());
                thread::spawn(move || {
                    let session = ServerConnection::new(config).unwrap();
                    answer(StreamOwned::new(session, stream.unwrap()), &served);
                });
            }
        });
        Self { set, address }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/keys", self.address.port())
    }
}

fn answer(stream: impl Read + Write, set: &Mutex<String>) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let body = set.lock().unwrap().clone();
    let length = body.len();
    let text = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    let _ = stream.get_mut().write_all(text.as_bytes());
    let _ = stream.get_mut().flush();
}

/// Returns a repository, with an identity table next to it.
fn repository(keys: &str, ca: Option<&Path>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("models/open/1");
    fs::create_dir_all(&version).unwrap();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors");
    fs::copy(example, version.join("model.safetensors")).unwrap();
    let ca = ca.map_or(String::new(), |ca| format!("ca = \"{}\"\n", ca.display()));
    let table = format!(
        "[jwt]\nkeys = \"{keys}\"\n{ca}issuer = \"https://issuer\"\naudience = \"models\"\n\
         [identities.ci]\njwt = [\"ci\"]\napis = [\"*\"]\n[anonymous]\napis = [\"health\", \"metrics\"]\n"
    );
    fs::write(folder.path().join("auth.toml"), table).unwrap();
    folder
}

fn start(folder: &TempDir) -> Server {
    let table = folder.path().join("auth.toml");
    let models = folder.path().join("models");
    let mut server = Server::spawn(&mut command(&models, &["--auth", table.to_str().unwrap()]));
    server.wait_until_loaded();
    server
}

fn ask(server: &Server, token: &str) -> TestResponse {
    let value = format!("Bearer {token}");
    server.request("GET", "/v2/models/open", &[("Authorization", &value)], b"")
}

/// Sends the request over gRPC.
async fn ask_over_grpc(server: &Server, token: &str) -> Result<(), (ErrorCode, String)> {
    let client = oip_client::builder(format!("grpc://{}", server.grpc))
        .header("authorization", format!("Bearer {token}"))
        .build()
        .unwrap();
    let answer = client.model_metadata(ModelRef::new("open", None).unwrap()).await;
    answer
        .map(drop)
        .map_err(|error| (error.code().unwrap(), error.message().to_owned()))
}

fn error(answer: &TestResponse) -> String {
    answer.json()["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn tokens_are_held_against_keys_at_a_url() {
    let certificates = Certificates::new();
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let issuer = Issuer::start(listener, &certificates, set(&key, "one"));
    let folder = repository(&issuer.url(), Some(&certificates.path("ca.pem")));
    let server = start(&folder);
    assert_eq!(ask(&server, &token(&key, "one", 60)).status, 200);
    assert_eq!(ask_over_grpc(&server, &token(&key, "one", 60)).await, Ok(()));
    let stranger = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    for (token, reason) in [
        (token(&key, "one", -60), "the token has expired"),
        (
            token(&stranger, "one", 60),
            "the token is not signed by a known key",
        ),
        (
            token(&stranger, "other", 60),
            "the token is not signed by a known key",
        ),
        ("s3cret".to_owned(), "the token is not known"),
    ] {
        let answer = ask(&server, &token);
        assert_eq!((answer.status, error(&answer)), (401, reason.to_owned()));
        let refused = (ErrorCode::Unauthenticated, reason.to_owned());
        assert_eq!(ask_over_grpc(&server, &token).await, Err(refused));
    }
    let page = Page::of(&server);
    assert!(page.value("oip_auth_key_fetches_total", &[]) >= 1.0);
    assert_eq!(page.value("oip_auth_key_fetch_failures_total", &[]), 0.0);

    // The new table names the same URL, so the fetched keys are kept although the issuer no longer serves
    // any.
    *issuer.set.lock().unwrap() = "gone".to_owned();
    let table = folder.path().join("auth.toml");
    let changed = fs::read_to_string(&table).unwrap() + "rate = 1000.0\n";
    fs::write(&table, changed).unwrap();
    server.signal("HUP");
    for _ in 0..20 {
        assert_eq!(ask(&server, &token(&key, "one", 60)).status, 200);
    }

    // Without the CA the keys cannot be trusted.
    *issuer.set.lock().unwrap() = set(&key, "one");
    let folder = repository(&issuer.url(), None);
    let failure = failing(&[
        folder.path().join("models").to_str().unwrap(),
        "--auth",
        folder.path().join("auth.toml").to_str().unwrap(),
    ]);
    let expected = format!("--auth: {}: ", issuer.url());
    assert!(
        failure.0 == 2 && failure.1.starts_with(&expected) && failure.1.contains("file `ca`"),
        "{failure:?}"
    );
}

#[test]
fn a_server_starts_without_its_issuer_and_says_so() {
    let certificates = Certificates::new();
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("https://localhost:{}/keys", address.port());
    let folder = repository(&url, Some(&certificates.path("ca.pem")));
    let server = start(&folder);
    assert_eq!(server.get("/v2/health/ready").status, 200);
    let answer = ask(&server, &token(&key, "one", 60));
    assert_eq!(answer.status, 503);
    assert!(error(&answer).starts_with("the keys of tokens could not be fetched yet"));
    assert!(answer.header("retry-after").is_some());
    assert!(Page::of(&server).value("oip_auth_key_fetch_failures_total", &[]) >= 1.0);
    let _issuer = Issuer::start(
        TcpListener::bind(address).unwrap(),
        &certificates,
        set(&key, "one"),
    );
    until("the keys are fetched", || {
        ask(&server, &token(&key, "one", 60)).status == 200
    });
}
