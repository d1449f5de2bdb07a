//! Tests models with any number of responses, over both transports and sockets.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use oip_engine::{Engine, EngineConfig, Repository};
use oip_grpc::{
    GrpcConfig, GrpcService,
    proto::{
        InferParameter, InferTensorContents, ModelInferRequest, ModelStreamInferResponse,
        grpc_inference_service_client::GrpcInferenceServiceClient, infer_parameter::ParameterChoice,
        model_infer_request::InferInputTensor,
    },
};
use oip_http::HttpConfig;
use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen, serve};
use oip_model::{Backend, Call, Capabilities, LoadContext, Model, ModelSource, Outcome};
use oip_resources::{ByteBudget, RequestNotes};
use oip_types::{BytesTensor, DataType, InferOutput, ModelMetadata, ServiceError, TensorMetadata};
use serde_json::{Value, json};
use tensor_core::Shape;
use tonic::{Code, Request, Streaming, codegen::Service, transport::Channel};

/// A model that counts from 0 to its input in string responses. Inputs of at least `FAILS` fail at the end,
/// `LARGE` sends endless 64 KiB responses, and `SLOW` sends one response and waits for its request to end.
struct CountingBackend(Arc<RunLog>);

const FAILS: i32 = 1_000_000;
const LARGE: i32 = 2_000_000;
const SLOW: i32 = 3_000_000;

#[derive(Default)]
struct RunLog {
    sent: AtomicUsize,
    ended: AtomicUsize,
    /// Lets the model `one` respond.
    is_released: AtomicBool,
}

impl Backend for CountingBackend {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn file_names(&self) -> &[&str] {
        &["model.counting"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let x = TensorMetadata::new("x", DataType::INT32, &[1]);
        let y = TensorMetadata::new("y", DataType::BYTES, &[1]);
        Ok(Box::new(CountingModel(
            ModelMetadata::new("", "test_counting", vec![x], vec![y]),
            self.0.clone(),
            source.name == "m",
        )))
    }
}

/// A model that sends any number of responses, or a single response once released.
struct CountingModel(ModelMetadata, Arc<RunLog>, bool);

impl Model for CountingModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let cancel = call.cancel;
        if !self.2 {
            while !self.1.is_released.load(Ordering::SeqCst) && !cancel.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            let y = BytesTensor::from_elements(Shape::vector(1), ["one"])?;
            return Ok(Outcome::output("y", y));
        }
        let x = call.request.take::<i32>("x")?[0];
        let responses = call.sink()?;
        let mut send = |text: String| {
            let y = BytesTensor::from_elements(Shape::vector(1), [text])?;
            responses.send(vec![InferOutput::new("y", y)])?;
            self.1.sent.fetch_add(1, Ordering::SeqCst);
            Ok::<(), ServiceError>(())
        };
        let ended = match x {
            LARGE => (0..).try_for_each(|_: u64| send("x".repeat(64 << 10))),
            SLOW => {
                let sent = send("0".to_owned());
                while !cancel.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                sent
            }
            FAILS.. => (0..x - FAILS)
                .try_for_each(|value| send(value.to_string()))
                .and(Err(ServiceError::invalid("it \"fails\" at the end"))),
            x => (0..x).try_for_each(|value| send(value.to_string())),
        };
        self.1.ended.fetch_add(1, Ordering::SeqCst);
        ended.map(|()| Outcome::Streamed)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| capabilities.decoupled = self.2)
    }
}

/// A server with one instance each of the models `m`, with any number of responses, and `one`.
struct StreamServer {
    runtime: tokio::runtime::Runtime,
    http: SocketAddr,
    grpc: SocketAddr,
    calls: GrpcService,
    engine: Arc<Engine>,
    seen: Arc<RunLog>,
    budget: ByteBudget,
    shutdown: Shutdown,
    _folder: tempfile::TempDir,
}

impl StreamServer {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for version in ["m/1", "one/1"] {
            let version = folder.path().join(version);
            std::fs::create_dir_all(&version).unwrap();
            std::fs::write(version.join("model.counting"), "").unwrap();
        }
        let seen = Arc::new(RunLog::default());
        let backend: Arc<dyn Backend> = Arc::new(CountingBackend(seen.clone()));
        let config = EngineConfig::default().with(|config| config.instances = 1);
        let repository = Repository::open(folder.path(), &[backend], None).unwrap();
        let engine = Arc::new(Engine::start(repository, config));
        engine.wait_until_loaded();

        let budget = ByteBudget::new(64 << 20);
        let http = HttpConfig::default().with(|config| config.budget = budget.clone());
        let http = oip_http::router(engine.clone(), http);
        let grpc = GrpcConfig::default().with(|config| config.budget = budget.clone());
        let calls = oip_grpc::service(engine.clone(), grpc);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let shutdown = Shutdown::new();
        let bind = || {
            let _context = runtime.enter();
            listen("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let (http_listener, grpc_listener) = (bind(), bind());
        let addresses = [&http_listener, &grpc_listener].map(|listener| listener.local_addr().unwrap());
        let limits = ConnectionLimits::default();
        runtime.spawn(serve(
            http_listener,
            Protocol::Http1,
            http,
            limits.clone(),
            shutdown.clone(),
        ));
        runtime.spawn(serve(
            grpc_listener,
            Protocol::Http2,
            calls.clone(),
            limits,
            shutdown.clone(),
        ));
        Self {
            runtime,
            http: addresses[0],
            grpc: addresses[1],
            calls,
            engine,
            seen,
            budget,
            shutdown,
            _folder: folder,
        }
    }

    fn ended(&self) -> usize {
        self.seen.ended.load(Ordering::SeqCst)
    }

    /// Waits until the model has finished `count` requests and the whole memory budget is free again.
    fn wait_until_ended(&self, count: usize) {
        let start = Instant::now();
        while self.ended() < count || self.budget.used() > 0 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{} ended, {} bytes held",
                self.ended(),
                self.budget.used()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the number of responses that the model has sent when it blocks because nobody reads.
    fn sent_until_it_waits(&self) -> usize {
        let mut sent = 0;
        loop {
            thread::sleep(Duration::from_millis(200));
            let now = self.seen.sent.load(Ordering::SeqCst);
            if now == sent && now > 0 {
                return sent;
            }
            sent = now;
        }
    }

    fn post(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let body = body.to_string();
        let length = body.len();
        // The response has no chunks and ends with the connection.
        let head =
            format!("POST /v2/models/m/{path} HTTP/1.0\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).unwrap();
        stream
    }

    /// Returns status and body of an HTTP response.
    fn told(&self, path: &str, body: &Value) -> (u16, String) {
        let mut answer = String::new();
        self.post(path, body).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    /// Returns the events of a `generate_stream` response.
    fn events(&self, x: i32) -> Vec<Value> {
        let (status, body) = self.told("generate_stream", &json!({"x": x}));
        assert_eq!(status, 200, "{body}");
        let events = body.split("\n\n").filter(|event| !event.is_empty());
        events
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    async fn client(&self) -> GrpcInferenceServiceClient<Channel> {
        let endpoint = tonic::transport::Endpoint::new(format!("http://{}", self.grpc)).unwrap();
        GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
    }

    /// Opens a stream and sends `requests`.
    async fn stream(&self, requests: Vec<ModelInferRequest>) -> Streaming<ModelStreamInferResponse> {
        let requests = Request::new(tonic::codegen::tokio_stream::iter(requests));
        let mut client = self.client().await;
        client.model_stream_infer(requests).await.unwrap().into_inner()
    }
}

fn request(id: &str, x: i32) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".into(),
        id: id.into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "INT32".into(),
            shape: vec![1],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![x.to_le_bytes().to_vec().into()],
        ..ModelInferRequest::default()
    }
}

fn with_parameter(mut request: ModelInferRequest, name: &str, value: ParameterChoice) -> ModelInferRequest {
    let value = InferParameter {
        parameter_choice: Some(value),
    };
    request.parameters.insert(name.into(), value);
    request
}

/// Returns a response's request id, string and error, and whether it is marked as final.
fn parts(answer: ModelStreamInferResponse) -> (String, Option<String>, String, bool) {
    let response = answer.infer_response.unwrap();
    let text = response.raw_output_contents.first();
    let text = text.map(|raw| String::from_utf8(raw[4..].to_vec()).unwrap());
    let is_final = response.parameters["triton_final_response"]
        .parameter_choice
        .clone();
    let is_final = is_final == Some(ParameterChoice::BoolParam(true));
    (response.id, text, answer.error_message, is_final)
}

async fn all(
    mut answers: Streaming<ModelStreamInferResponse>,
) -> Vec<(String, Option<String>, String, bool)> {
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        all.push(parts(answer));
    }
    all
}

/// Checks that single responses are in request order, and that streamed responses do not wait for earlier
/// requests.
#[test]
fn several_answers_do_not_wait_for_requests_before_them() {
    let house = StreamServer::new();
    let one = |id: &str| ModelInferRequest {
        model_name: "one".into(),
        ..request(id, 0)
    };
    let requests = vec![one("a"), request("b", 2), one("c"), request("d", 1)];
    let mut answers = house.runtime.block_on(house.stream(requests));
    let mut next = || {
        let answer = house.runtime.block_on(answers.message()).unwrap().unwrap();
        let (id, text, ..) = parts(answer);
        (id, text.unwrap())
    };
    // The two requests can reach the model in either order.
    let mut found = [next(), next(), next()];
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let expected = [("b", "0"), ("b", "1"), ("d", "0")];
    assert_eq!(found, expected.map(|(id, text)| (id.to_owned(), text.to_owned())));
    house.seen.is_released.store(true, Ordering::SeqCst);
    let found = [next(), next()];
    assert_eq!(found, ["a", "c"].map(|id| (id.to_owned(), "one".to_owned())));
    house.wait_until_ended(2);
}

#[test]
fn the_version_that_answered_is_noted() {
    let house = StreamServer::new();
    let noted = |notes: &RequestNotes| {
        let noted = (
            notes.model().map(str::to_owned),
            notes.version().map(str::to_owned),
        );
        assert_eq!(noted, (Some("m".to_owned()), Some("1".to_owned())));
    };
    for path in ["generate", "generate_stream"] {
        let notes = Arc::new(RequestNotes::default());
        let request = axum::http::Request::post(format!("/v2/models/m/{path}")).header("host", "localhost");
        let mut request = request.body(axum::body::Body::from(r#"{"x":1}"#)).unwrap();
        request.extensions_mut().insert(notes.clone());
        let mut router = oip_http::router(house.engine.clone(), HttpConfig::default());
        let response = house.runtime.block_on(router.call(request)).unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20);
        let body = house.runtime.block_on(body).unwrap();
        assert_eq!(status, 200, "{body:?}");
        noted(&notes);
    }
    let notes = Arc::new(RequestNotes::default());
    let mut requests = Request::new(tonic::codegen::tokio_stream::iter([request("a", 2)]));
    requests.extensions_mut().insert(notes.clone());
    let mut client = GrpcInferenceServiceClient::new(house.calls.clone());
    house.runtime.block_on(async {
        let answers = client.model_stream_infer(requests).await.unwrap().into_inner();
        assert_eq!(all(answers).await.len(), 2);
    });
    noted(&notes);
}

#[test]
fn events_come_one_for_each_answer() {
    let house = StreamServer::new();
    for count in [0, 1, 300] {
        let expected: Vec<Value> = (0..count)
            .map(|value| json!({"model_name": "m", "model_version": "1", "y": value.to_string()}))
            .collect();
        assert_eq!(house.events(count), expected);
    }
    let failing = house.events(FAILS + 2);
    let error = "model 'm': it \"fails\" at the end";
    assert_eq!(failing[2..], [json!({"error": error})]);
    // Before the first response, the error has its own status.
    let (status, body) = house.told("generate_stream", &json!({"x": FAILS}));
    assert_eq!((status, body), (400, json!({"error": error}).to_string()));
    house.wait_until_ended(5);
}

#[test]
fn events_come_as_they_are_made() {
    let house = StreamServer::new();
    let mut lines = BufReader::new(house.post("generate_stream", &json!({"x": SLOW}))).lines();
    let mut lines = std::iter::from_fn(|| lines.next()).map(Result::unwrap);
    let first = lines.by_ref().find(|line| line.starts_with("data: ")).unwrap();
    assert!(first.contains(r#""y":"0""#), "{first}");
    assert_eq!(house.ended(), 0, "the request is at an end");
}

#[test]
fn generate_gives_the_one_answer_if_there_is_one() {
    let house = StreamServer::new();
    let (status, body) = house.told("generate", &json!({"x": 1}));
    assert_eq!(
        (status, &body[..]),
        (200, r#"{"model_name":"m","model_version":"1","y":"0"}"#)
    );
    for (x, found) in [
        (0, "no response"),
        (2, "more than one response"),
        (LARGE, "more than one response"),
    ] {
        let (status, body) = house.told("generate", &json!({"x": x}));
        assert_eq!(status, 400);
        let error =
            format!("model 'm': it returned {found}, and generate allows only one: use generate_stream");
        assert_eq!(body, json!({"error": error}).to_string());
    }
    house.wait_until_ended(4);
}

#[test]
fn calls_for_one_answer_are_refused_and_nothing_runs() {
    let house = StreamServer::new();
    let inputs = json!({"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]});
    let (status, body) = house.told("infer", &inputs);
    assert_eq!(status, 501);
    assert!(
        body.contains("it is decoupled") && body.contains("generate_stream"),
        "{body}"
    );
    house.runtime.block_on(async {
        let status = house
            .client()
            .await
            .model_infer(request("", 1))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(status.message().contains("ModelStreamInfer"), "{status}");
    });
    assert_eq!(house.ended(), 0);
}

#[test]
fn streams_of_calls_carry_all_answers_with_their_ids() {
    let house = StreamServer::new();
    house.runtime.block_on(async {
        let asks_for_end = |request| {
            with_parameter(
                request,
                "triton_enable_empty_final_response",
                ParameterChoice::BoolParam(true),
            )
        };
        // Sends more requests than run concurrently, each with more responses than are queued, to one
        // instance.
        let mut requests: Vec<_> = (0..30).map(|id| request(&id.to_string(), 50)).collect();
        requests.push(asks_for_end(request("three", 3)));
        requests.push(asks_for_end(request("none", 0)));
        requests.push(request("none, silently", 0));
        requests.push(request("fails", FAILS + 1));
        let answers = all(house.stream(requests).await).await;
        let of = |wanted: &str| {
            let answers = answers.iter().filter(|(id, ..)| id == wanted);
            let answers = answers.map(|(_, text, error, is_final)| {
                let text = text.clone().unwrap_or_else(|| error.clone());
                (text, *is_final)
            });
            answers.collect::<Vec<_>>()
        };
        for id in 0..30 {
            let expected: Vec<_> = (0..50).map(|value| (value.to_string(), false)).collect();
            assert_eq!(of(&id.to_string()), expected, "request {id}");
        }
        let text = |text: &str, is_final| (text.to_owned(), is_final);
        assert_eq!(
            of("three"),
            [
                text("0", false),
                text("1", false),
                text("2", false),
                text("", true)
            ]
        );
        assert_eq!(of("none"), [text("", true)]);
        assert_eq!(of("none, silently"), []);
        assert_eq!(
            of("fails"),
            [text("0", false), text("model 'm': it \"fails\" at the end", true)]
        );
    });
    house.wait_until_ended(34);
}

#[test]
fn a_client_that_takes_nothing_costs_little_and_one_that_leaves_costs_nothing() {
    let house = StreamServer::new();
    // Over HTTP, the limit is what socket buffers hold, and a few responses of the model.
    let stream = house.post("generate_stream", &json!({"x": LARGE}));
    let sent = house.sent_until_it_waits();
    assert!(sent <= 512, "{sent} answers of 64 KiB that nobody took");
    assert!(
        house.budget.used() < 16 << 20,
        "{} bytes held",
        house.budget.used()
    );
    drop(stream);
    house.wait_until_ended(1);

    // Over gRPC, HTTP/2 flow control bounds the data in transit.
    house.seen.sent.store(0, Ordering::SeqCst);
    let answers = house
        .runtime
        .block_on(async { house.stream(vec![request("", LARGE)]).await });
    let sent = house.sent_until_it_waits();
    assert!(sent <= 512, "{sent} answers of 64 KiB that nobody took");
    assert!(
        house.budget.used() < 16 << 20,
        "{} bytes held",
        house.budget.used()
    );
    drop(answers);
    house.wait_until_ended(2);
}

#[test]
fn what_waits_for_an_instance_stays_charged_with_its_parameters() {
    const MIB: u64 = 1 << 20;
    let house = StreamServer::new();
    let held = house.post("generate_stream", &json!({"x": SLOW}));
    house.sent_until_it_waits();
    let answers = house.runtime.block_on(async {
        let text = ParameterChoice::StringParam("x".repeat(MIB as usize));
        // The waiting request has typed contents: a raw tensor would be a slice of the message, and would
        // keep the whole message counted toward the budget.
        let mut waits = with_parameter(request("", 1), "text", text);
        waits.raw_input_contents.clear();
        let contents = InferTensorContents {
            int_contents: vec![1],
            ..InferTensorContents::default()
        };
        waits.inputs[0].contents = Some(contents);
        house.stream(vec![waits]).await
    });
    let start = Instant::now();
    while house.engine.metrics()[0].waiting == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the request does not come"
        );
        thread::sleep(Duration::from_millis(1));
    }
    // Memory that decoding charged to the budget is released during this pause.
    thread::sleep(Duration::from_millis(200));
    assert!(house.budget.used() >= MIB, "{} bytes held", house.budget.used());
    drop((held, answers));
    house.wait_until_ended(1);
}

#[test]
fn a_client_that_leaves_between_two_answers_stops_the_model() {
    let house = StreamServer::new();
    let mut stream = house.post("generate_stream", &json!({"x": SLOW}));
    stream.read_exact(&mut [0; 64]).unwrap();
    assert_eq!(house.ended(), 0);
    drop(stream);
    house.wait_until_ended(1);
    house.runtime.block_on(async {
        let mut answers = house.stream(vec![request("", SLOW)]).await;
        answers.message().await.unwrap().unwrap();
        assert_eq!(house.ended(), 1);
    });
    house.wait_until_ended(2);
}

#[test]
fn the_deadline_of_a_request_ends_its_answers() {
    let house = StreamServer::new();
    // The timeout is in microseconds, as in Triton.
    let (status, body) = house.told("generate_stream", &json!({"x": SLOW, "timeout": 2_000_000}));
    let events: Vec<&str> = body.split_terminator("\n\n").collect();
    assert_eq!((status, events.len()), (200, 2), "{body}");
    assert!(events[1].starts_with("data: {\"error\":\"model 'm': "), "{body}");
    assert!(events[1].contains("deadline"), "{body}");
    house.wait_until_ended(1);
    house.runtime.block_on(async {
        let request = with_parameter(
            request("", SLOW),
            "timeout",
            ParameterChoice::Int64Param(2_000_000),
        );
        let answers = all(house.stream(vec![request]).await).await;
        assert_eq!(answers.len(), 2, "{answers:?}");
        let (_, _, error, is_final) = &answers[1];
        assert!(error.contains("deadline") && *is_final, "{answers:?}");
    });
    house.wait_until_ended(2);
}

#[test]
fn answers_on_their_way_come_to_their_end_when_the_server_is_drained() {
    let house = StreamServer::new();
    let answers = house
        .runtime
        .block_on(async { house.stream(vec![request("", 2000)]).await });
    let mut lines = BufReader::new(house.post("generate_stream", &json!({"x": 2000}))).lines();
    // Both requests have arrived: one runs, and the other waits or has finished.
    let start = Instant::now();
    while house.seen.sent.load(Ordering::SeqCst) == 0 || house.ended() + house.engine.waiting() as usize == 0
    {
        assert!(start.elapsed() < Duration::from_secs(60), "they do not begin");
        thread::sleep(Duration::from_millis(1));
    }
    house.engine.start_draining();
    house.shutdown.drain();
    house.calls.drain_streams();
    let stopping = thread::spawn({
        let engine = house.engine.clone();
        move || engine.stop(Instant::now() + Duration::from_secs(60))
    });
    let taken = house.runtime.block_on(async {
        let mut answers = answers;
        let mut taken = 0;
        while let Ok(Some(_)) = answers.message().await {
            taken += 1;
        }
        taken
    });
    assert_eq!(taken, 2000);
    let events = std::iter::from_fn(|| lines.next()).map(Result::unwrap);
    assert_eq!(events.filter(|line| line.starts_with("data: ")).count(), 2000);
    assert!(stopping.join().unwrap());
}
