//! Requests with tensors in shared memory get the same responses as requests with the tensors in their
//! bodies, whatever the server supports and whatever fails.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Extensions, Request};
use http_body_util::BodyExt;
use oip_client::{ErrorKind, HttpClient, InferenceClient, Patience, RetryPolicy};
use oip_grpc::GrpcConfig;
use oip_http::{HttpConfig, REGISTER_CONNECTION_MEMORY};
use oip_listen::{ConnectionLimits, Descriptors, Protocol, Shutdown, listen_unix, serve};
use oip_model::BoxFuture;
use oip_resources::{ByteBudget, ConnectionRegion};
use oip_service::{
    InferenceService, Readiness, RequestContext,
    testing::{TestService, datatypes},
};
use oip_shm::ConnectionRegions;
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata,
    ServiceError, SharedMemorySlice, TensorMetadata, TensorValue,
};
use tempfile::TempDir;
use tensor_core::{DType, Shape, Tensor};
use tower::ServiceExt;

use crate::support::{identity_request, some_values};

/// A service on one Unix socket per transport, with a memory budget for requests.
struct TestServers {
    /// The HTTP URL.
    url: String,
    grpc_url: String,
    budget: ByteBudget,
    /// Total size of all request bodies that the server received, in bytes.
    sent: Arc<AtomicUsize>,
    shutdown: Shutdown,
    _folder: TempDir,
}

impl TestServers {
    fn new(service: Arc<dyn InferenceService>, budget: u64) -> Self {
        let budget = ByteBudget::new(budget);
        let regions = ConnectionRegions::new(&budget, 64 << 20);
        let config = HttpConfig::default().with(|config| {
            config.budget = budget.clone();
            config.connection_memory = Some(Arc::new(regions));
        });
        let limits = ConnectionLimits::default().with(|limits| {
            const PATHS: &[&str] = &[REGISTER_CONNECTION_MEMORY, oip_grpc::REGISTER_CONNECTION_MEMORY];
            limits.descriptors = Some(Descriptors::new(PATHS, |descriptor| {
                let mut extensions = Extensions::new();
                extensions.insert(ConnectionRegion::new(descriptor));
                extensions
            }));
        });
        Self::with(service, config, limits)
    }

    fn with(service: Arc<dyn InferenceService>, config: HttpConfig, limits: ConnectionLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [path, grpc_path] = ["s", "g"].map(|name| folder.path().join(name));
        let sent = Arc::new(AtomicUsize::new(0));
        let budget = config.budget.clone();
        let grpc = GrpcConfig::default().with(|grpc| {
            grpc.budget = budget.clone();
            grpc.connection_memory = config.connection_memory.clone();
        });
        let counter = sent.clone();
        let count = move |request: Request<oip_listen::RequestBody>| {
            let sent = counter.clone();
            request.map(|body| {
                body.map_frame(move |frame| {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    sent.fetch_add(bytes, Ordering::SeqCst);
                    frame
                })
            })
        };
        let shutdown = Shutdown::new();
        let listen = |path| listen_unix(path, 0o600).unwrap();
        let app = oip_grpc::service(service.clone(), grpc);
        let counted = app.map_request(count.clone());
        let served = serve(
            listen(&grpc_path),
            Protocol::Http2,
            counted,
            limits.clone(),
            shutdown.clone(),
        );
        tokio::spawn(served);
        let app = oip_http::service(service, config);
        let counted = app.map_request(count);
        let served = serve(listen(&path), Protocol::Http1, counted, limits, shutdown.clone());
        tokio::spawn(served);
        Self {
            url: format!("unix://{}", path.display()),
            grpc_url: format!("grpc+unix://{}", grpc_path.display()),
            budget,
            sent,
            shutdown,
            _folder: folder,
        }
    }

    fn client(&self) -> HttpClient {
        HttpClient::builder(&self.url).build().unwrap()
    }

    /// Returns an HTTP client and a gRPC client.
    fn clients(&self) -> [Arc<dyn InferenceClient>; 2] {
        self.clients_with(&RetryPolicy::default())
    }

    fn clients_with(&self, retry: &RetryPolicy) -> [Arc<dyn InferenceClient>; 2] {
        [&self.url, &self.grpc_url].map(|url| {
            let client = oip_client::builder(url).retry(retry.clone()).build().unwrap();
            Arc::from(client)
        })
    }

    /// Runs a call of a blocking client.
    async fn block<T: Send + 'static>(
        &self,
        call: impl FnOnce(oip_client::BlockingClient) -> T + Send + 'static,
    ) -> T {
        let client = HttpClient::builder(&self.url).build_blocking().unwrap();
        tokio::task::spawn_blocking(move || call(client)).await.unwrap()
    }

    /// Waits until no request and no region uses memory.
    async fn is_idle(&self) {
        let start = Instant::now();
        while self.budget.used() > 0 {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{} bytes stay",
                self.budget.used()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

const BUDGET: u64 = 512 << 20;

fn floats(values: Vec<f32>) -> TensorValue {
    Tensor::from_vec(Shape::vector(values.len() as u64), values)
        .unwrap()
        .into()
}

/// Tensors of every datatype and size arrive unchanged with all kinds of clients, and large tensors do not go
/// through the socket.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_same_as_by_bytes() {
    let served = TestServers::new(Arc::new(TestService::default()), BUDGET);
    let clients = served.clients();
    for (client, datatype) in clients
        .iter()
        .flat_map(|client| datatypes().map(move |it| (client, it)))
    {
        let width = datatype.dtype().map_or(24, DType::size);
        for bytes in [0, 100, 20_000, 300_001, 2_500_003] {
            let value = some_values(datatype, (bytes / width) as u64);
            let request = identity_request(value.clone());
            let before = served.sent.load(Ordering::SeqCst);
            let response = client.infer(&request).await.unwrap();
            let output = &response.outputs[0];
            assert_eq!(output.value, value, "{datatype} {bytes}");
            assert_eq!(output.shared_memory, None);
            let sent = served.sent.load(Ordering::SeqCst) - before;
            let is_small = bytes < 100_000;
            assert_eq!(sent >= bytes * 3 / 4, is_small, "{datatype} {bytes}: {sent}");
        }
    }
    let before = served.sent.load(Ordering::SeqCst);
    let call = move |client: oip_client::BlockingClient| {
        for bytes in [20_000, 300_004, 2_500_000, 300_004] {
            let value = some_values(DataType::FP32, bytes / 4);
            let request = identity_request(value.clone());
            let call = |client: HttpClient| async move { client.infer(&request).await };
            let response = client.call(Patience::default(), call).unwrap();
            assert_eq!(response.outputs[0].value, value, "{bytes}");
        }
    };
    served.block(call).await;
    let sent = served.sent.load(Ordering::SeqCst) - before;
    assert!((20_000..30_000).contains(&sent), "{sent}");
    // Regions count towards the budget while their connections are open.
    assert!(served.budget.used() >= 6 << 20);
    drop(clients);
    served.is_idle().await;
}

/// A model that returns `n` consecutive floats in each output: `a` from 0, `b` from 1.
struct GrowingModel;

impl InferenceService for GrowingModel {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("growing", "1")
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn model_metadata(&self, _: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        let input = TensorMetadata::new("n", DataType::FP32, &[-1]);
        let outputs = ["a", "b"].map(|name| TensorMetadata::new(name, DataType::FP32, &[-1]));
        Ok(Arc::new(ModelMetadata::new(
            "growing",
            "test",
            vec![input],
            outputs.to_vec(),
        )))
    }

    fn infer(
        &self,
        mut request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            let input = request.take_input("n")?;
            let count = input.as_fixed().unwrap().to_vec::<f32>().unwrap()[0];
            let values = |from: usize| floats((from..from + count as usize).map(|n| n as f32).collect());
            let outputs = vec![InferOutput::new("a", values(0)), InferOutput::new("b", values(1))];
            Ok(InferResponse::new("growing", outputs)
                .with_id(request.id)
                .with_parameters(request.parameters))
        })
    }
}

/// Outputs may be larger than the inputs or than earlier outputs: the outputs first arrive in the response
/// body, and for the next request in a larger region.
#[tokio::test(flavor = "multi_thread")]
async fn outputs_of_any_size_come() {
    let served = TestServers::new(Arc::new(GrowingModel), BUDGET);
    let clients = served.clients();
    let model = ModelRef::new("growing", None).unwrap();
    let counts = [10, 50_000, 50_000, 400_000, 400_000, 10, 1_000_000];
    for (client, count) in clients
        .iter()
        .flat_map(|client| counts.map(|count| (client, count)))
    {
        let request = InferRequest::new(model).with_input("n", floats(vec![count as f32]));
        let response = client.infer(&request).await.unwrap();
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            let values = response
                .output(name)
                .unwrap()
                .as_fixed()
                .unwrap()
                .to_vec::<f32>()
                .unwrap();
            assert_eq!(values.len(), count);
            assert!(
                values
                    .iter()
                    .enumerate()
                    .all(|(at, value)| *value == (at + index) as f32)
            );
        }
        // The region's parameters are not passed to the model.
        assert!(!SharedMemorySlice::is_in(&response.parameters));
    }
    assert!(served.budget.used() >= 8 << 20);
    for url in [&served.url, &served.grpc_url] {
        let small = oip_client::builder(url)
            .max_answer_bytes(1 << 20)
            .build()
            .unwrap();
        for _ in 0..3 {
            let request = InferRequest::new(model).with_input("n", floats(vec![300_000.0]));
            let error = small.infer(&request).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        }
    }
}

/// Tensors are sent over the socket to servers that do not support regions, have no memory left, or do not
/// accept file descriptors.
#[tokio::test(flavor = "multi_thread")]
async fn other_servers_get_bytes() {
    let service = || Arc::new(TestService::default());
    let value = some_values(DataType::FP32, 500_000);
    let without = TestServers::with(service(), HttpConfig::default(), ConnectionLimits::default());
    // The budget leaves 3 MiB for regions, but the request needs 4 MiB.
    let full = TestServers::new(service(), 12 << 20);
    // This server supports regions, but its listener closes the file descriptors that clients send.
    let deaf = {
        let config = HttpConfig::default().with(|config| {
            let regions = ConnectionRegions::new(&config.budget, 64 << 20);
            config.connection_memory = Some(Arc::new(regions));
        });
        TestServers::with(service(), config, ConnectionLimits::default())
    };
    for (served, name) in [(without, "without"), (full, "full"), (deaf, "deaf")] {
        assert_eq!(served.budget.used(), 0);
        for client in served.clients() {
            let before = served.sent.load(Ordering::SeqCst);
            for _ in 0..3 {
                let request = identity_request(value.clone());
                let response = client.infer(&request).await.unwrap();
                assert_eq!(response.outputs[0].value, value, "{name}");
            }
            let sent = served.sent.load(Ordering::SeqCst) - before;
            assert!(sent >= 6_000_000, "{name}: {sent}");
        }
        let value = value.clone();
        served
            .block(move |client| {
                let request = identity_request(value.clone());
                let call = |client: HttpClient| async move { client.infer(&request).await };
                let response = client.call(Patience::default(), call).unwrap();
                assert_eq!(response.outputs[0].value, value, "{name}");
            })
            .await;
    }
}

/// Concurrent requests of one client use separate regions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_do_not_meet() {
    let served = TestServers::new(Arc::new(TestService::default()), BUDGET);
    let clients = served.clients();
    let tasks = (0..16).map(|task| {
        let client = clients[task % 2].clone();
        tokio::spawn(async move {
            for round in 0..20 {
                let value = floats(vec![(task * 100 + round) as f32; 60_000 + task * 10_000]);
                let response = client.infer(&identity_request(value.clone())).await.unwrap();
                assert_eq!(response.outputs[0].value, value);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    drop(clients);
    served.is_idle().await;
}

/// A cancelled request closes its connection and region, and the server frees the memory.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_requests_leave_nothing() {
    let service = Arc::new(TestService::default());
    let served = TestServers::new(service.clone(), BUDGET);
    let value = some_values(DataType::FP32, 200_000);
    for url in [&served.url, &served.grpc_url] {
        let client = oip_client::builder(url).build().unwrap();
        client.infer(&identity_request(value.clone())).await.unwrap();
        let used = served.budget.used();
        for _ in 0..5 {
            let slow = InferRequest::new(ModelRef::new("slow", None).unwrap()).with_input("x", value.clone());
            let mut running = Box::pin(client.infer(&slow));
            while service.waiting() == 0 {
                let _ = tokio::time::timeout(Duration::from_millis(5), &mut running).await;
            }
            drop(running);
            // The next request uses another region, because the server may still write to the first one.
            let response = client.infer(&identity_request(value.clone())).await.unwrap();
            assert_eq!(response.outputs[0].value, value);
            let start = Instant::now();
            while service.waiting() > 0 || served.budget.used() > used {
                assert!(
                    start.elapsed() < Duration::from_secs(20),
                    "{} {used}",
                    served.budget.used()
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        let impatient = oip_client::builder(url)
            .request_timeout(Duration::from_millis(50))
            .build()
            .unwrap();
        let slow = InferRequest::new(ModelRef::new("slow", None).unwrap()).with_input("x", value.clone());
        let error = impatient.infer(&slow).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Timeout || error.code() == Some(ErrorCode::DeadlineExceeded),
            "{error}"
        );
        drop((client, impatient));
        served.is_idle().await;
    }
}

/// Error messages are the same as without shared memory, and the next request succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_the_same() {
    let service = || Arc::new(TestService::default());
    let (with, without) = (
        TestServers::new(service(), BUDGET),
        TestServers::with(service(), HttpConfig::default(), ConnectionLimits::default()),
    );
    let value = some_values(DataType::FP32, 200_000);
    let mut said = BTreeSet::new();
    let clients = [&with, &without].map(|served| served.clients_with(&RetryPolicy::never()));
    for client in clients.iter().flatten() {
        let mut errors = Vec::new();
        for model in ["failing", "busy", "loading", "zz", "identity_int32"] {
            let request =
                InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("x", value.clone());
            let error = client.infer(&request).await.unwrap_err();
            // HTTP messages also list the existing models.
            let message = error.message().split("; there are").next().unwrap_or_default();
            errors.push(format!("{model}: {:?} {message}", error.code()));
            let response = client.infer(&identity_request(value.clone())).await.unwrap();
            assert_eq!(response.outputs[0].value, value);
        }
        said.insert(errors);
    }
    assert_eq!(said.len(), 1, "{said:#?}");
}

/// The client reconnects after a server restart, with or without a region.
#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_are_replaced() {
    let served = TestServers::new(Arc::new(TestService::default()), BUDGET);
    let client = served.client();
    let value = some_values(DataType::FP32, 200_000);
    client.infer(&identity_request(value.clone())).await.unwrap();
    served.shutdown.drain();
    served.is_idle().await;
    let path = served.url.strip_prefix("unix://").unwrap();
    let again = Arc::new(Mutex::new(None));
    let listener = listen_unix(std::path::Path::new(path), 0o600).unwrap();
    let app = oip_http::router(Arc::new(TestService::default()), HttpConfig::default());
    *again.lock().unwrap() = Some(tokio::spawn(serve(
        listener,
        Protocol::Http1,
        app,
        ConnectionLimits::default(),
        Shutdown::new(),
    )));
    let response = client.infer(&identity_request(value.clone())).await.unwrap();
    assert_eq!(response.outputs[0].value, value);
}

/// A region is reused for requests that fit into it.
#[tokio::test(flavor = "multi_thread")]
async fn regions_are_used_again() {
    let served = TestServers::new(Arc::new(TestService::default()), BUDGET);
    for client in served.clients() {
        for bytes in [2_500_000, 300_000, 300_000, 2_400_000] {
            let value = some_values(DataType::FP32, bytes / 4);
            client.infer(&identity_request(value)).await.unwrap();
            assert_eq!(served.budget.used() >> 20, 5, "{bytes}");
        }
        drop(client);
        served.is_idle().await;
    }
}
