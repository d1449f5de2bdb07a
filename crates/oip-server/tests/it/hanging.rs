//! Tests what clients see over both transports when a model hangs, and when a model is not loaded yet.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, http::Request};
use http_body_util::BodyExt;
use oip_engine::{Engine, EngineConfig, InPlace, Repository};
use oip_grpc::{
    GrpcConfig, GrpcService,
    proto::{
        ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
        model_infer_request::InferInputTensor,
    },
};
use oip_http::HttpConfig;
use oip_listen::{ConnectionLimits, Lanes, Protocol, Shutdown, listen, serve};
use oip_model::{Backend, Call, Capabilities, LoadContext, Model, ModelSource, Outcome};
use oip_resources::TimeLimits;
use oip_types::{DataType, ModelMetadata, ServiceError, TensorMetadata};
use tonic::Code;
use tower::ServiceExt;

/// Identity models. `hangs` ignores cancellation and blocks until it is released, and `loads` does not finish
/// loading until then. `promises` declares that its run time is bounded, but hangs for the input 13.
struct HangingBackend(Arc<AtomicBool>);

impl Backend for HangingBackend {
    fn name(&self) -> &'static str {
        "hanging"
    }

    fn file_names(&self) -> &[&str] {
        &["model.hanging"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let tensor = |name: &str| TensorMetadata::new(name, DataType::INT32, &[1]);
        if source.name == "loads" {
            wait_for(&self.0);
        }
        Ok(Box::new(HangingModel {
            is_released: (source.name != "works").then(|| self.0.clone()),
            promises: source.name == "promises",
            metadata: ModelMetadata::new("", "test_hanging", vec![tensor("x")], vec![tensor("y")]),
        }))
    }
}

fn wait_for(is_released: &AtomicBool) {
    while !is_released.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
}

struct HangingModel {
    is_released: Option<Arc<AtomicBool>>,
    promises: bool,
    metadata: ModelMetadata,
}

impl Model for HangingModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| capabilities.bounded = self.promises)
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let x = call.request.take_input("x")?;
        let hangs = !self.promises || x.raw()[..] == 13i32.to_le_bytes();
        let is_released = self.is_released.iter().filter(|_| hangs);
        is_released.for_each(|released| wait_for(released));
        if self.promises && thread::current().name() == Some("work") {
            IS_IN_PLACE.store(true, Ordering::SeqCst);
        }
        Ok(Outcome::output("y", x))
    }
}

/// Whether `promises` ran on a transport's thread.
static IS_IN_PLACE: AtomicBool = AtomicBool::new(false);

async fn get(http: &Router, path: &str) -> u16 {
    let request = Request::get(path)
        .header("host", "x")
        .body(Body::empty())
        .unwrap();
    http.clone().oneshot(request).await.unwrap().status().into()
}

async fn post(http: &Router, model: &str) -> (u16, String) {
    let body = r#"{"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [7]}]}"#;
    let request = Request::post(format!("/v2/models/{model}/infer")).header("host", "x");
    let response = http.clone().oneshot(request.body(Body::from(body)).unwrap());
    let response = response.await.unwrap();
    let status = response.status().into();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.into()).unwrap())
}

async fn call(grpc: &mut GrpcInferenceServiceClient<GrpcService>, model: &str) -> Code {
    let input = InferInputTensor {
        name: "x".into(),
        datatype: "INT32".into(),
        shape: vec![1],
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest {
        model_name: model.into(),
        inputs: vec![input],
        raw_input_contents: vec![7i32.to_le_bytes().to_vec().into()],
        ..ModelInferRequest::default()
    };
    grpc.model_infer(request)
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

/// An engine that is loading these models, the switch that releases hanging runs, and both transports.
struct Setup {
    engine: Arc<Engine>,
    is_released: Arc<AtomicBool>,
    http: Router,
    grpc: GrpcInferenceServiceClient<GrpcService>,
    _folder: tempfile::TempDir,
}

impl Setup {
    fn of(models: &[&str]) -> Self {
        Self::with(models, None)
    }

    fn with(models: &[&str], in_place: Option<InPlace>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for model in models {
            let version = folder.path().join(model).join("1");
            std::fs::create_dir_all(&version).unwrap();
            std::fs::write(version.join("model.hanging"), "").unwrap();
        }
        let is_released = Arc::new(AtomicBool::new(false));
        let backend: Arc<dyn Backend> = Arc::new(HangingBackend(is_released.clone()));
        let config = EngineConfig::default().with(|config| {
            config.instances = 2;
            config.parallel_loads = 2;
            config.hang_timeout = Duration::from_millis(50);
            config.in_place = in_place;
        });
        let repository = Repository::open(folder.path(), &[backend], None).unwrap();
        let engine = Arc::new(Engine::start(repository, config));
        let time = TimeLimits::default().with(|time| {
            time.default = Duration::from_millis(200);
            time.max = Duration::from_millis(200);
        });
        let http = HttpConfig::default().with(|config| config.time = time);
        let grpc = GrpcConfig::default().with(|config| config.time = time);
        Self {
            http: oip_http::router(engine.clone(), http),
            grpc: GrpcInferenceServiceClient::new(oip_grpc::service(engine.clone(), grpc)),
            engine,
            is_released,
            _folder: folder,
        }
    }
}

#[tokio::test]
async fn live_but_not_ready_while_a_model_is_loaded() {
    let Setup {
        engine,
        is_released,
        http,
        mut grpc,
        _folder,
    } = Setup::of(&["loads", "works"]);
    let start = Instant::now();
    while post(&http, "works").await.0 != 200 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the other model is not loaded"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(get(&http, "/v2/health/live").await, 200);
    assert_eq!(get(&http, "/v2/health/ready").await, 503);
    assert_eq!(get(&http, "/v2/models/loads/ready").await, 503);
    assert_eq!(get(&http, "/v2/models/works/ready").await, 200);
    let (status, body) = post(&http, "loads").await;
    assert_eq!(status, 503);
    assert!(
        body.contains("model 'loads' is not ready: it is being loaded"),
        "{body}"
    );
    assert_eq!(call(&mut grpc, "loads").await, Code::Unavailable);

    is_released.store(true, Ordering::SeqCst);
    engine.wait_until_loaded();
    assert_eq!(get(&http, "/v2/health/ready").await, 200);
    assert_eq!(post(&http, "loads").await.0, 200);
    assert_eq!(call(&mut grpc, "loads").await, Code::Ok);
}

#[tokio::test]
async fn a_model_that_hangs_costs_504s_then_itself_and_nothing_else() {
    let Setup {
        engine,
        is_released,
        http,
        mut grpc,
        _folder,
    } = Setup::of(&["hangs", "works"]);
    engine.wait_until_loaded();

    // Each of the model's two threads takes a request and hangs.
    let (status, body) = post(&http, "hangs").await;
    assert_eq!(status, 504, "{body}");
    assert_eq!(call(&mut grpc, "hangs").await, Code::DeadlineExceeded);
    // Then the model is marked as hanging, and its clients fail immediately.
    let start = Instant::now();
    loop {
        let (status, body) = post(&http, "hangs").await;
        if status == 503 {
            assert!(
                body.contains("all of its 2 instances hang in abandoned requests"),
                "{body}"
            );
            break;
        }
        assert_eq!(status, 504, "{body}");
        assert!(start.elapsed() < Duration::from_secs(20), "it is never given up");
    }
    assert_eq!(call(&mut grpc, "hangs").await, Code::Unavailable);
    assert_eq!(get(&http, "/v2/models/hangs/ready").await, 503);
    assert_eq!(get(&http, "/v2/health/ready").await, 503);

    // Other clients are not affected.
    assert_eq!(get(&http, "/v2/health/live").await, 200);
    for _ in 0..20 {
        assert_eq!(post(&http, "works").await.0, 200);
        assert_eq!(call(&mut grpc, "works").await, Code::Ok);
    }
    // The shutdown does not wait for the hanging model.
    let start = Instant::now();
    assert!(!engine.stop(start + Duration::from_millis(100)));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    is_released.store(true, Ordering::SeqCst);
}

/// A client with its own connection.
struct Connection(TcpStream);

impl Connection {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(stream)
    }

    fn send(&mut self, model: &str, x: i32) {
        let body =
            format!(r#"{{"inputs": [{{"name": "x", "datatype": "INT32", "shape": [1], "data": [{x}]}}]}}"#);
        let length = body.len();
        let head =
            format!("POST /v2/models/{model}/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        self.0.write_all((head + &body).as_bytes()).unwrap();
    }

    /// Reads a response, whose body is one JSON object.
    fn status(&mut self) -> u16 {
        let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
        while !answer.ends_with(b"}") {
            let length = self.0.read(&mut piece).unwrap();
            assert!(length > 0, "the server hung up");
            answer.extend_from_slice(&piece[..length]);
        }
        std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap()
    }

    fn post(&mut self, model: &str, x: i32) -> u16 {
        self.send(model, x);
        self.status()
    }
}

/// The worst case of a model that runs on a transport's thread: it has declared that its runs are short, but
/// hangs. The transport has one more thread than may run models, so all other requests are served: on
/// existing and new connections, over both transports, for the same model and others.
#[test]
fn a_model_that_hangs_on_a_transports_thread_takes_its_own_connection_only() {
    let runtime = |name: &str, threads| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.thread_name(name).worker_threads(threads).enable_all();
        builder.build().unwrap()
    };
    let (front, work, busy) = (runtime("front", 1), runtime("work", 2), runtime("busy", 1));
    let in_place = InPlace::new(
        Duration::from_millis(50),
        1,
        || Box::pin(tokio::task::yield_now()),
    );
    let Setup {
        engine,
        is_released,
        http,
        _folder,
        ..
    } = Setup::with(&["promises", "works"], Some(in_place));
    engine.wait_until_loaded();
    let lanes = Lanes::new(work.handle().clone(), busy.handle().clone());
    front.spawn(lanes.clone().keep_awake());
    let limits = ConnectionLimits::default().with(|limits| limits.lanes = Some(lanes));
    let bind = |handle: &tokio::runtime::Handle| {
        let _context = handle.enter();
        listen("127.0.0.1:0".parse().unwrap()).unwrap()
    };
    let (http_listener, grpc_listener) = (bind(front.handle()), bind(work.handle()));
    let address = http_listener.local_addr().unwrap();
    let grpc_address = grpc_listener.local_addr().unwrap();
    let shutdown = Shutdown::new();
    front.spawn(serve(
        http_listener,
        Protocol::Http1,
        http,
        limits.clone(),
        shutdown.clone(),
    ));
    let calls = oip_grpc::service(engine.clone(), GrpcConfig::default());
    work.spawn(serve(grpc_listener, Protocol::Http2, calls, limits, shutdown));

    let mut old = Connection::to(address);
    let start = Instant::now();
    while !IS_IN_PLACE.load(Ordering::SeqCst) {
        assert_eq!(old.post("promises", 7), 200);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it never runs in place"
        );
    }
    // After so many requests without company, a request does not let others go first.
    let mut existing = Connection::to(address);
    assert_eq!(existing.post("works", 7), 200);
    for _ in 0..80 {
        assert_eq!(old.post("promises", 7), 200);
    }
    let mut hanging = old;
    hanging.send("promises", 13);
    // Waits until the run hangs, which no response reports.
    thread::sleep(Duration::from_millis(100));
    for connection in [&mut existing, &mut Connection::to(address)] {
        assert_eq!(connection.post("works", 7), 200);
        assert_eq!(connection.post("promises", 7), 200);
    }
    front.block_on(async {
        let channel = tonic::transport::Endpoint::new(format!("http://{grpc_address}")).unwrap();
        let mut client = GrpcInferenceServiceClient::new(channel.connect().await.unwrap());
        for model in ["works", "promises"] {
            let input = InferInputTensor {
                name: "x".into(),
                datatype: "INT32".into(),
                shape: vec![1],
                ..InferInputTensor::default()
            };
            let request = ModelInferRequest {
                model_name: model.into(),
                inputs: vec![input],
                raw_input_contents: vec![7i32.to_le_bytes().to_vec().into()],
                ..ModelInferRequest::default()
            };
            client.model_infer(request).await.unwrap();
        }
    });
    is_released.store(true, Ordering::SeqCst);
    assert!([200, 504].contains(&hanging.status()));
    for runtime in [front, work, busy] {
        runtime.shutdown_background();
    }
}
