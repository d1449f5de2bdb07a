//! Tests the server while it is reading its models and keys.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Mutex,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use model_store::testing::{FakeServer, Objects};
use oip_grpc::proto::{
    ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
};
use tonic::{Code, transport::Endpoint};

use crate::support::{TestResponse, connect, receive, send};

/// A server whose store does not respond until this value is dropped.
struct WaitingServer {
    child: Child,
    http: SocketAddr,
    grpc: SocketAddr,
    store: Option<Sender<()>>,
}

/// Returns a port that is currently free.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl WaitingServer {
    fn start(cache: &Path, more: &[&str]) -> Self {
        Self::with_log(cache, more, Stdio::inherit())
    }

    fn with_log(cache: &Path, more: &[&str], log: Stdio) -> Self {
        let objects = Objects::default();
        let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   "#;
        let model = [&(header.len() as u64).to_le_bytes()[..], header, b"abc"].concat();
        objects.put("weights/1/model.safetensors", model);
        let (store, is_open) = channel::<()>();
        let is_open = Mutex::new(is_open);
        let server = FakeServer::start(move |request| {
            let _ = is_open.lock().unwrap().recv();
            objects.as_s3("models", 1000, request)
        });
        let (http, grpc) = (free_port(), free_port());
        let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
        command
            .args(["s3://models", "--http-address", &http.to_string()])
            .args(["--grpc-address", &grpc.to_string(), "--repository-cache"])
            .arg(cache)
            .args(more)
            .env_clear()
            .env("AWS_ENDPOINT_URL", server.url())
            .envs([
                ("AWS_ACCESS_KEY_ID", "k"),
                ("AWS_SECRET_ACCESS_KEY", "s"),
                ("AWS_REGION", "r"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().unwrap();
        let start = Instant::now();
        while TcpStream::connect(http).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "the port is not open");
            thread::sleep(Duration::from_millis(5));
        }
        Self {
            child,
            http,
            grpc,
            store: Some(store),
        }
    }

    fn ask(&self, method: &str, path: &str) -> TestResponse {
        let mut stream = connect(self.http);
        send(&mut stream, method, path, &[], b"");
        receive(&mut stream)
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(killed.unwrap().success());
    }

    fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the server did not end"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for WaitingServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process with id 1 receives only signals that it handles, so the handlers must be installed before the
/// models are fetched.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_is_live_and_ends_at_a_signal_while_its_models_are_fetched() {
    let cache = tempfile::tempdir().unwrap();
    let mut server = WaitingServer::start(cache.path(), &[]);
    for path in ["/livez", "/v2/health/live"] {
        assert_eq!(server.ask("GET", path).status, 200, "{path}");
    }
    for path in ["/readyz", "/v2/health/ready", "/ping"] {
        let answer = server.ask("GET", path);
        assert_eq!(answer.status, 503, "{path}");
        let json = answer.json();
        assert_eq!((&json["live"], &json["ready"]), (&true.into(), &false.into()));
        assert!(
            json["error"]
                .as_str()
                .unwrap()
                .starts_with("the server is starting"),
            "{json}"
        );
    }
    // Requests other than health checks may need permissions, which are not known yet.
    for (method, path) in [
        ("GET", "/v2"),
        ("GET", "/metrics"),
        ("GET", "/v2/models/weights"),
        ("POST", "/v2/models/weights/infer"),
        ("POST", "/v2/repository/models/weights/unload"),
    ] {
        let answer = server.ask(method, path);
        let json = answer.json();
        assert_eq!(answer.status, 503, "{path}");
        assert!(
            json["error"]
                .as_str()
                .unwrap()
                .starts_with("the server is starting"),
            "{json}"
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    let url = format!("http://{}", server.grpc);
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = GrpcInferenceServiceClient::new(channel);
    assert!(
        client
            .server_live(ServerLiveRequest {})
            .await
            .unwrap()
            .get_ref()
            .live
    );
    assert!(
        !client
            .server_ready(ServerReadyRequest {})
            .await
            .unwrap()
            .get_ref()
            .ready
    );
    let refused = client
        .server_metadata(ServerMetadataRequest {})
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// Checks that the second signal is logged although the process exits at once.
#[test]
fn a_second_signal_ends_a_starting_server_at_once() {
    let cache = tempfile::tempdir().unwrap();
    let mut server = WaitingServer::with_log(cache.path(), &[], Stdio::piped());
    assert_eq!(server.ask("GET", "/readyz").status, 503);
    // A half-open HTTP/2 connection keeps the drain waiting.
    let mut stalled = connect(server.grpc);
    stalled.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    for signal in ["TERM", "INT"] {
        thread::sleep(Duration::from_millis(200));
        assert!(
            server.child.try_wait().unwrap().is_none(),
            "the drain did not wait"
        );
        server.signal(signal);
    }
    assert_eq!(server.wait().code(), Some(130));
    let mut log = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    stderr.read_to_string(&mut log).unwrap();
    let last = log.lines().last().unwrap();
    assert!(
        last.contains("oip_server::app: exiting at once signal=\"SIGINT\""),
        "{log}"
    );
}

#[test]
fn a_server_that_was_waiting_for_its_models_serves_them_at_the_same_address() {
    let cache = tempfile::tempdir().unwrap();
    let mut server = WaitingServer::start(cache.path(), &[]);
    assert_eq!(server.ask("GET", "/readyz").status, 503);
    server.store = None;
    let start = Instant::now();
    while server.ask("GET", "/v2/models/weights/ready").status != 200 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it does not become ready"
        );
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.ask("GET", "/readyz").status, 200);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// Checks that a fatal error after the ports were opened ends the server and removes its Unix socket.
#[test]
fn a_server_whose_sources_cannot_be_read_says_so_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let admin = format!("unix:{}", socket.display());
    let missing = folder.path().join("nobody.toml");
    let mut server = WaitingServer::start(
        &folder.path().join("cache"),
        &["--admin-address", &admin, "--auth", missing.to_str().unwrap()],
    );
    assert_eq!(server.ask("GET", "/livez").status, 200);
    assert!(socket.exists());
    server.store = None;
    assert_eq!(server.wait().code(), Some(2));
    assert!(!socket.exists());
}
