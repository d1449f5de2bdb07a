//! Benchmarks the server process: startup time, memory, and latency.
//!
//! ```text
//! cargo bench -p oip-server --bench serve
//! ```
//!
//! The process serves the example models on loopback. Client and server share the CPU, so the figures are the
//! cost of both together. Connections are persistent, and every response is read to its end. `GET
//! /v2/health/live` is the baseline: the cost of HTTP without tensors or models. HTTP requests are sent over
//! plain sockets, gRPC requests by `oip-client`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_client::{GrpcClient, InferenceClient};
use oip_types::{
    ModelRef, RequestLimits,
    rest::{RequestEncoding, decode_request, encode_request},
};

/// Number of timed starts.
const STARTS: usize = 21;
/// Requests per row, over all connections together.
const REQUESTS: usize = 5000;

const METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n";

fn main() {
    let mut ready: Vec<Duration> = (0..STARTS).map(|_| Server::start().ready).collect();
    ready.sort();
    println!(
        "start to ready, all example models loaded: median {:.1?}, slowest of {STARTS} {:.1?}",
        ready[STARTS / 2],
        ready[STARTS - 1]
    );

    let server = Server::start();
    println!("resident when idle: {:.1} MiB", server.resident_mib());
    let binary = fs::metadata(env!("CARGO_BIN_EXE_oip-server")).unwrap().len();
    println!("the program: {:.1} MiB", binary as f64 / f64::from(1 << 20));

    let one = fs::read(examples().join("requests/one_digit.json")).unwrap();
    let all = fs::read(examples().join("requests/digits.json")).unwrap();
    println!("\n{:<44}{:>12}{:>12}{:>14}", "", "p50", "p99", "requests/s");
    for connections in [1, 8] {
        println!("{connections} connections");
        let live = b"GET /v2/health/live HTTP/1.1\r\nHost: bench\r\n\r\n".to_vec();
        report(
            "  GET /v2/health/live",
            http(server.http, connections, &live, REQUESTS),
        );
        for model in ["digits", "digits_forest"] {
            let json = post(model, &one, None);
            report(
                &format!("  {model}, 1 image, HTTP JSON"),
                http(server.http, connections, &json, REQUESTS),
            );
            let (body, length) = binary_body(&one);
            let binary = post(model, &body, Some(length));
            report(
                &format!("  {model}, 1 image, HTTP binary"),
                http(server.http, connections, &binary, REQUESTS),
            );
            report(
                &format!("  {model}, 1 image, gRPC"),
                grpc(server.grpc, connections, model, &one, REQUESTS),
            );
        }
        let json = post("digits", &all, None);
        report(
            "  digits, 450 images, HTTP JSON",
            http(server.http, connections, &json, REQUESTS / 10),
        );
        let (body, length) = binary_body(&all);
        let binary = post("digits", &body, Some(length));
        report(
            "  digits, 450 images, HTTP binary",
            http(server.http, connections, &binary, REQUESTS / 10),
        );
        report(
            "  digits, 450 images, gRPC",
            grpc(server.grpc, connections, "digits", &all, REQUESTS / 10),
        );
    }
    println!("\nresident after that: {:.1} MiB", server.resident_mib());
    drop(server);
    metrics();
}

/// Measures the metrics page with few and with many models, and the CPU time per request by the server's own
/// metrics.
fn metrics() {
    const MANY: usize = 100;
    let server = Server::start();
    let one = fs::read(examples().join("requests/one_digit.json")).unwrap();
    http(server.http, 8, &post("digits", &one, None), 20 * REQUESTS);
    let value = |name: &str| server.metric(name);
    let requests = value("nv_inference_request_success{model=\"digits\",version=\"1\"}");
    let runs = value("nv_inference_exec_count{model=\"digits\",version=\"1\"}");
    println!(
        "\ndigits, 1 image, HTTP JSON, 8 connections: {:.1} us of processor time of the server per request, batches of {:.1}",
        value("process_cpu_seconds_total") * 1e6 / requests,
        requests / runs
    );
    drop(server);
    let folder = tempfile::tempdir().unwrap();
    for index in 0..MANY {
        let version = folder.path().join(format!("digits{index}/1"));
        fs::create_dir_all(&version).unwrap();
        let example = examples().join("models/digits/1/model.onnx");
        fs::copy(example, version.join("model.onnx")).unwrap();
    }
    for (label, repository) in [
        ("GET /metrics, the example models", examples().join("models")),
        ("GET /metrics, 100 models", folder.path().to_owned()),
    ] {
        let server = Server::start_with(&repository);
        report(label, http(server.http, 1, METRICS, REQUESTS / 10));
    }
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

struct Server {
    process: Child,
    http: SocketAddr,
    grpc: SocketAddr,
    /// The time from starting the process until all models are loaded.
    ready: Duration,
}

impl Server {
    fn start() -> Self {
        Self::start_with(&examples().join("models"))
    }

    fn start_with(repository: &Path) -> Self {
        let start = Instant::now();
        let mut process = Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .arg("--model-repository")
            .arg(repository)
            .args([
                "--http-address",
                "127.0.0.1:0",
                "--grpc-address",
                "127.0.0.1:0",
                "--log",
                "off",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut find = |wanted: &str| loop {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, rest)) = line.split_once(wanted) {
                return rest.trim().trim_start_matches("http://").to_owned();
            }
        };
        let (http, grpc) = (find("HTTP").parse().unwrap(), find("gRPC").parse().unwrap());
        find("ready after");
        Self {
            process,
            http,
            grpc,
            ready: start.elapsed(),
        }
    }

    /// Returns a value of the metrics page.
    fn metric(&self, sample: &str) -> f64 {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.write_all(METRICS).unwrap();
        let mut answer = Vec::new();
        receive(&mut stream, &mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let value = answer
            .lines()
            .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.unwrap().parse().unwrap()
    }

    fn resident_mib(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn post(model: &str, body: &[u8], header_length: Option<usize>) -> Vec<u8> {
    let length = body.len();
    let mut request =
        format!("POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n");
    if let Some(length) = header_length {
        request += &format!("Inference-Header-Content-Length: {length}\r\n");
    }
    let mut request = (request + "\r\n").into_bytes();
    request.extend_from_slice(body);
    request
}

fn binary_body(json: &[u8]) -> (Bytes, usize) {
    let request = decode_request(
        ModelRef::new("m", None).unwrap(),
        &Bytes::copy_from_slice(json),
        None,
        &RequestLimits::default(),
    );
    let encoding = RequestEncoding::default().with(|encoding| {
        encoding.binary_inputs = true;
        encoding.binary_outputs = true;
    });
    let body = encode_request(&request.unwrap().request, encoding).unwrap();
    let length = body.header_length().unwrap();
    (body.into_bytes(), length)
}

/// Sends a request repeatedly over `connections` connections; returns all latencies and the total time.
fn http(address: SocketAddr, connections: usize, request: &[u8], count: usize) -> (Vec<Duration>, Duration) {
    let start = Instant::now();
    let times = thread::scope(|scope| {
        let clients: Vec<_> = (0..connections)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let mut buffer = Vec::with_capacity(1 << 20);
                    (0..count / connections)
                        .map(|_| {
                            let start = Instant::now();
                            stream.write_all(request).unwrap();
                            receive(&mut stream, &mut buffer);
                            start.elapsed()
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    (times, start.elapsed())
}

/// Reads one response with a Content-Length.
fn receive(stream: &mut TcpStream, buffer: &mut Vec<u8>) {
    buffer.clear();
    let mut chunk = vec![0; 64 << 10];
    let mut total = None;
    while total.is_none_or(|total| buffer.len() < total) {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "the server hung up");
        buffer.extend_from_slice(&chunk[..read]);
        if total.is_none()
            && let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n")
        {
            let head = std::str::from_utf8(&buffer[..end]).unwrap().to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200"), "{head}");
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .unwrap();
            total = Some(end + 4 + length.parse::<usize>().unwrap());
        }
    }
}

fn grpc(
    address: SocketAddr,
    connections: usize,
    model: &str,
    json: &[u8],
    count: usize,
) -> (Vec<Duration>, Duration) {
    let model = ModelRef::new(model, None).unwrap();
    let decoded = decode_request(
        model,
        &Bytes::copy_from_slice(json),
        None,
        &RequestLimits::default(),
    );
    let request = decoded.unwrap().request;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..connections {
            let client = GrpcClient::builder(format!("grpc://{address}")).build().unwrap();
            // The first call opens the connection.
            assert!(client.server_live().await.unwrap());
            clients.push(client);
        }
        let start = Instant::now();
        let running: Vec<_> = clients
            .into_iter()
            .map(|client| {
                let request = request.clone();
                tokio::spawn(async move {
                    let mut times = Vec::with_capacity(count / connections);
                    for _ in 0..count / connections {
                        let start = Instant::now();
                        client.infer(&request).await.unwrap();
                        times.push(start.elapsed());
                    }
                    times
                })
            })
            .collect();
        let mut times = Vec::new();
        for client in running {
            times.extend(client.await.unwrap());
        }
        (times, start.elapsed())
    })
}

fn report(label: &str, (mut times, elapsed): (Vec<Duration>, Duration)) {
    let rate = times.len() as f64 / elapsed.as_secs_f64();
    times.sort();
    let micros = |time: Duration| format!("{:.0} us", time.as_secs_f64() * 1e6);
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{label:<44}{:>12}{:>12}{rate:>14.0}", micros(p50), micros(p99));
}
