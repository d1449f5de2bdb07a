//! What a request costs the server: processor time, context switches, and how long its client waits. Beside it what a bare
//! echo over hyper and over tonic costs, which is the floor on any machine.
//!
//! ```text
//! cargo xtask bench serve
//! cargo bench -p oip-server --bench per_request -- --beside target/old/oip-server
//! ```
//!
//! Servers are pinned to the first processor and this client to the second (by `taskset`, if it is there), so a server has one
//! processor whatever the machine has. The client is one thread: with many callers it is often the slower one of the two, and
//! the waiting times are those of the pair. Processor time is the server's alone, of all its threads, as the system counts it.
//! All servers are measured in turn, in rounds; of each row the round with the least processor time is shown.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{
    convert::Infallible,
    env, fs,
    future::{Ready, ready},
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use oip_grpc::proto::{
    ModelInferRequest, ModelInferResponse, model_infer_request::InferInputTensor,
    model_infer_response::InferOutputTensor,
};
use oip_types::{
    InferRequest, ModelRef,
    rest::{RequestEncoding, encode_request},
};
use prost::Message;
use tensor_core::{Shape, Tensor};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::LocalSet,
};

/// What a child of this program is started with to be a floor.
const FLOOR: &str = "--floor";

fn main() {
    let mut arguments = env::args().skip(1);
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .unwrap_or_else(|| panic!("{argument} needs a value"))
        };
        match argument.as_str() {
            FLOOR => return serve_floor(&value()),
            "--beside" => options.beside.push(value()),
            "--seconds" => options.seconds = value().parse().unwrap(),
            "--rounds" => options.rounds = value().parse().unwrap(),
            "--only" => options.only = Some(value()),
            // What cargo gives every benchmark.
            "--bench" => {}
            other => {
                panic!("unknown argument {other}: --beside PROGRAM, --seconds N, --rounds N, --only TEXT")
            }
        }
    }
    run(&options);
}

struct Options {
    /// Other programs with the same options, such as an older build.
    beside: Vec<String>,
    /// How long each figure is measured.
    seconds: f64,
    rounds: usize,
    /// Only rows with this in their names.
    only: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            beside: Vec::new(),
            seconds: 1.5,
            rounds: 3,
            only: None,
        }
    }
}

fn run(options: &Options) {
    let is_pinned = pin(std::process::id(), 1);
    let repository = repository();
    let mut servers = vec![Server::start(
        "this",
        env!("CARGO_BIN_EXE_oip-server"),
        repository.path(),
    )];
    for program in &options.beside {
        let name = Path::new(program)
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        servers.push(Server::start(&name, program, repository.path()));
    }
    let floors = [Server::floor("http"), Server::floor("grpc")];
    if !is_pinned {
        println!("there is no taskset: nothing is pinned");
    }
    println!(
        "\n{:<44}{:>12}{:>12}{:>12}{:>12}{:>14}",
        "", "cpu us", "switches", "p50 us", "p99 us", "requests/s"
    );
    for work in work() {
        if options
            .only
            .as_ref()
            .is_some_and(|only| !work.name.contains(only))
        {
            continue;
        }
        for callers in work.callers {
            println!("{}, {callers} callers", work.name);
            let floor = &floors[usize::from(work.is_grpc)];
            let all: Vec<&Server> = servers.iter().chain([floor]).collect();
            let mut best: Vec<Option<Cost>> = all.iter().map(|_| None).collect();
            for round in 0..options.rounds {
                for turn in 0..all.len() {
                    let index = (turn + round) % all.len();
                    let cost = all[index].measure(&work, *callers, options.seconds);
                    let best = &mut best[index];
                    if best.as_ref().is_none_or(|best| cost.cpu < best.cpu) {
                        *best = Some(cost);
                    }
                }
            }
            let floor = best.last().unwrap().as_ref().unwrap().cpu;
            for (server, cost) in all.iter().zip(&best) {
                let cost = cost.as_ref().unwrap();
                println!(
                    "  {:<42}{:>12.1}{:>12.2}{:>12.0}{:>12.0}{:>14.0}{:>8.2}x",
                    server.name,
                    cost.cpu,
                    cost.switches,
                    cost.p50,
                    cost.p99,
                    cost.rate,
                    cost.cpu / floor
                );
            }
        }
    }
}

/// A kind of request, and how many callers send it.
struct Work {
    name: String,
    is_grpc: bool,
    /// An HTTP/1 request as bytes, or the message of a gRPC call in its frame.
    request: Bytes,
    callers: &'static [usize],
}

const FEW_AND_MANY: &[usize] = &[1, 32];

fn work() -> Vec<Work> {
    let mut all = vec![Work {
        name: "GET /v2/health/live".to_owned(),
        is_grpc: false,
        request: Bytes::from_static(b"GET /v2/health/live HTTP/1.1\r\nHost: bench\r\n\r\n"),
        callers: FEW_AND_MANY,
    }];
    for (model, label, dims, callers) in [
        ("identity_16", "identity 1x16", [1, 16], FEW_AND_MANY),
        ("digits", "digits 1x64", [1, 64], FEW_AND_MANY),
        ("identity_16k", "identity 64 KiB", [1, 16 << 10], &[8]),
        ("identity_4m", "identity 16 MiB", [1, 4 << 20], &[1]),
    ] {
        let shape = Shape::new(&dims).unwrap();
        let values: Vec<f32> = (0..shape.element_count())
            .map(|index| (index % 17) as f32)
            .collect();
        let input = if model == "digits" { "X" } else { "x" };
        let x = Tensor::from_vec(shape, values).unwrap();
        let request = InferRequest::new(ModelRef::new(model, None).unwrap()).with_input(input, x.clone());
        let is_small = dims[1] <= 64 << 10;
        let mut add = |form: &str, is_grpc, request| {
            all.push(Work {
                name: format!("{label}, {form}"),
                is_grpc,
                request,
                callers,
            });
        };
        for is_binary in [false, true] {
            if is_binary || is_small {
                add(
                    if is_binary { "binary" } else { "JSON" },
                    false,
                    post(model, &request, is_binary),
                );
            }
        }
        let message = ModelInferRequest {
            model_name: model.to_owned(),
            inputs: vec![InferInputTensor {
                name: input.to_owned(),
                datatype: "FP32".to_owned(),
                shape: dims.map(|dim| dim as i64).to_vec(),
                ..InferInputTensor::default()
            }],
            raw_input_contents: vec![x.bytes().clone()],
            ..ModelInferRequest::default()
        };
        add("gRPC", true, framed(&message));
    }
    all
}

fn post(model: &str, request: &InferRequest, is_binary: bool) -> Bytes {
    let encoding = RequestEncoding::default().with(|encoding| {
        encoding.binary_inputs = is_binary;
        encoding.binary_outputs = is_binary;
    });
    let body = encode_request(request, encoding).unwrap();
    let length = body.header_length();
    let body = body.into_bytes();
    let mut post = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n",
        body.len()
    );
    if let Some(length) = length {
        post += &format!("Inference-Header-Content-Length: {length}\r\n");
    }
    [post.as_bytes(), b"\r\n", &body].concat().into()
}

fn framed(message: &impl Message) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.encoded_len() as u32);
    message.encode(&mut framed).unwrap();
    framed.freeze()
}

/// The example network, and models that give their input back: a row of 16 numbers, of 16 Ki, of 4 Mi.
fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digits/1/model.onnx");
    let place = |model: &str| -> PathBuf {
        let version = folder.path().join(model).join("1");
        fs::create_dir_all(&version).unwrap();
        version.join("model.onnx")
    };
    fs::copy(digits, place("digits")).unwrap();
    for (model, width) in [
        ("identity_16", 16),
        ("identity_16k", 16 << 10),
        ("identity_4m", 4 << 20),
    ] {
        fs::write(place(model), identity(width)).unwrap();
    }
    folder
}

/// An ONNX model with one `Identity`, for rows of so many floats.
fn identity(width: u64) -> Vec<u8> {
    fn field(number: u64, content: &[u8]) -> Vec<u8> {
        let mut field = Vec::new();
        prost::encoding::encode_varint(number << 3 | 2, &mut field);
        prost::encoding::encode_varint(content.len() as u64, &mut field);
        [&field, content].concat()
    }
    fn number(tag: u64, value: u64) -> Vec<u8> {
        let mut field = Vec::new();
        prost::encoding::encode_varint(tag << 3, &mut field);
        prost::encoding::encode_varint(value, &mut field);
        field
    }
    let value = |name: &str| {
        let shape = [field(1, &field(2, b"rows")), field(1, &number(1, width))].concat();
        let tensor = [number(1, 1), field(2, &shape)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let node = [field(1, b"x"), field(2, b"y"), field(4, b"Identity")].concat();
    let graph = [
        field(1, &node),
        field(2, b"g"),
        field(11, &value("x")),
        field(12, &value("y")),
    ]
    .concat();
    [number(1, 8), field(7, &graph), field(8, &number(2, 13))].concat()
}

/// Ties a process, with all threads it has, to one processor.
fn pin(process: u32, processor: usize) -> bool {
    let mut taskset = Command::new("taskset");
    taskset.args(["-a", "-c", "-p", &processor.to_string(), &process.to_string()]);
    let status = taskset.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A program that runs on the first processor.
fn pinned(program: &str) -> Command {
    let has_taskset = Command::new("taskset")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok();
    if !has_taskset {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", "0", program]);
    command
}

struct Server {
    name: String,
    process: Child,
    http: SocketAddr,
    grpc: SocketAddr,
}

impl Server {
    fn start(name: &str, program: &str, repository: &Path) -> Self {
        let mut command = pinned(program);
        command.arg("--model-repository").arg(repository).args([
            "--http-address",
            "127.0.0.1:0",
            "--grpc-address",
            "127.0.0.1:0",
            "--log",
            "off",
        ]);
        let (process, mut find) = spawn(command);
        let (http, grpc) = (find("HTTP").parse().unwrap(), find("gRPC").parse().unwrap());
        find("ready after");
        Self {
            name: name.to_owned(),
            process,
            http,
            grpc,
        }
    }

    fn floor(transport: &str) -> Self {
        let mut command = pinned(env::current_exe().unwrap().to_str().unwrap());
        command.args([FLOOR, transport]);
        let (process, mut find) = spawn(command);
        let address = find("floor").parse().unwrap();
        Self {
            name: format!(
                "a bare echo, {}",
                if transport == "grpc" { "tonic" } else { "hyper" }
            ),
            process,
            http: address,
            grpc: address,
        }
    }

    /// Sends requests for some time.
    fn measure(&self, work: &Work, callers: usize, seconds: f64) -> Cost {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async {
            // Enough for models to be known.
            self.drive(work, callers, seconds / 5.0).await;
            let before = self.used();
            let start = Instant::now();
            let mut times = self.drive(work, callers, seconds).await;
            let elapsed = start.elapsed();
            let after = self.used();
            times.sort();
            let count = times.len() as f64;
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            Cost {
                cpu: micros(after.0 - before.0) / count,
                switches: (after.1 - before.1) as f64 / count,
                p50: micros(times[times.len() / 2]),
                p99: micros(times[times.len() * 99 / 100]),
                rate: count / elapsed.as_secs_f64(),
            }
        })
    }

    async fn drive(&self, work: &Work, callers: usize, seconds: f64) -> Vec<Duration> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let callers: Vec<_> = (0..callers)
            .map(|_| {
                let (request, http, grpc) = (work.request.clone(), self.http, self.grpc);
                match work.is_grpc {
                    true => tokio::task::spawn_local(call_grpc(grpc, request, end)),
                    false => tokio::task::spawn_local(call_http(http, request, end)),
                }
            })
            .collect();
        let mut times = Vec::new();
        for caller in callers {
            times.extend(caller.await.unwrap());
        }
        times
    }

    /// Processor time and context switches of all threads so far.
    fn used(&self) -> (Duration, u64) {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let mut used = (Duration::ZERO, 0);
        for thread in threads {
            let folder = thread.unwrap().path();
            // A thread may end meanwhile.
            let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
            let nanos = read("schedstat")
                .split(' ')
                .next()
                .and_then(|text| text.parse().ok());
            used.0 += Duration::from_nanos(nanos.unwrap_or(0));
            let switches = read("status");
            let lines = switches.lines().filter(|line| line.contains("ctxt_switches"));
            let counts = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            used.1 += counts.sum::<u64>();
        }
        used
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a program, and a search through what it prints for the rest of a line that begins with a word.
fn spawn(mut command: Command) -> (Child, impl FnMut(&str) -> String) {
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let find = move |wanted: &str| loop {
        let line = lines.next().unwrap().unwrap();
        if let Some((_, rest)) = line.split_once(wanted) {
            return rest.trim().trim_start_matches("http://").to_owned();
        }
    };
    (process, find)
}

/// What a request costs, in microseconds where it is time.
struct Cost {
    cpu: f64,
    switches: f64,
    p50: f64,
    p99: f64,
    rate: f64,
}

/// Sends a request over a connection of its own again and again; the time of each.
async fn call_http(address: SocketAddr, request: Bytes, end: Instant) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        if start >= end {
            return times;
        }
        // Large bodies are answered while they are sent by an echo.
        let (mut read, mut write) = stream.split();
        let sending = async { write.write_all(&request).await.unwrap() };
        tokio::join!(sending, receive(&mut read, &mut buffer));
        times.push(start.elapsed());
    }
}

/// Reads one answer with a length.
async fn receive(stream: &mut (impl AsyncReadExt + Unpin), buffer: &mut [u8]) {
    let mut filled = 0;
    let mut left = loop {
        filled += read(stream, &mut buffer[filled..]).await;
        let Some(end) = buffer[..filled]
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
        else {
            continue;
        };
        let head = std::str::from_utf8(&buffer[..end]).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse::<usize>().unwrap())
        });
        break length.unwrap() - (filled - end - 4);
    };
    while left > 0 {
        left -= read(stream, buffer).await;
    }
}

async fn read(stream: &mut (impl AsyncReadExt + Unpin), buffer: &mut [u8]) -> usize {
    let read = stream.read(buffer).await.unwrap();
    assert!(read > 0, "the server hung up");
    read
}

/// The same over HTTP/2, without what a gRPC client has beside.
async fn call_grpc(address: SocketAddr, message: Bytes, end: Instant) -> Vec<Duration> {
    const WINDOW: u32 = 1 << 20;
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(64 << 10)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    let driver = tokio::task::spawn_local(connection);
    let path = format!("http://{address}/inference.GRPCInferenceService/ModelInfer");
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        if start >= end {
            driver.abort();
            return times;
        }
        sender = sender.ready().await.unwrap();
        let request = Request::builder()
            .method(Method::POST)
            .uri(&path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (response, mut body) = sender.send_request(request, false).unwrap();
        body.send_data(message.clone(), true).unwrap();
        let response = response.await.unwrap();
        let refusal = response.headers().get("grpc-status");
        assert!(refusal.is_none(), "{:?}", response.headers());
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let length = data.unwrap().len();
            body.flow_control().release_capacity(length).unwrap();
        }
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0", "{trailers:?}");
        times.push(start.elapsed());
    }
}

/// Serves a bare echo until it is killed.
fn serve_floor(transport: &str) {
    let is_grpc = transport == "grpc";
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("floor {}", listener.local_addr().unwrap());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            tokio::spawn(async move {
                let stream = TokioIo::new(stream);
                // Ends when the client leaves.
                let _ = match is_grpc {
                    true => {
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .initial_stream_window_size(1 << 20)
                            .initial_connection_window_size(1 << 20)
                            .max_frame_size(64 << 10)
                            .serve_connection(stream, service_fn(echo_grpc))
                            .await
                    }
                    false => {
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(stream, service_fn(echo_http))
                            .await
                    }
                };
            });
        }
    });
}

async fn echo_http(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let mut body = request.into_body().collect().await?.aggregate();
    Ok(Response::new(Full::new(body.copy_to_bytes(body.remaining()))))
}

async fn echo_grpc(request: Request<Incoming>) -> Result<Response<tonic::body::Body>, Infallible> {
    let codec = tonic_prost::ProstCodec::default();
    let mut grpc = tonic::server::Grpc::new(codec)
        .max_decoding_message_size(64 << 20)
        .max_encoding_message_size(64 << 20);
    Ok(grpc.unary(Echo, request).await)
}

struct Echo;

impl tonic::server::UnaryService<ModelInferRequest> for Echo {
    type Response = ModelInferResponse;
    type Future = Ready<Result<tonic::Response<ModelInferResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<ModelInferRequest>) -> Self::Future {
        let request = request.into_inner();
        let outputs = request.inputs.into_iter().map(|input| InferOutputTensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            ..InferOutputTensor::default()
        });
        ready(Ok(tonic::Response::new(ModelInferResponse {
            model_name: request.model_name,
            outputs: outputs.collect(),
            raw_output_contents: request.raw_input_contents,
            ..ModelInferResponse::default()
        })))
    }
}
