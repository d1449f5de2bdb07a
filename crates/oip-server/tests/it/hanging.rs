//! MD-05 and LC-08 as clients see them, over both transports: a model that never comes back, and one that is not there yet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, http::Request};
use http_body_util::BodyExt;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_grpc::{
    GrpcConfig, GrpcService,
    proto::{
        ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
        model_infer_request::InferInputTensor,
    },
};
use oip_http::HttpConfig;
use oip_service::{Backend, CancelToken, LoadContext, Model, ModelSource, TimeLimits};
use oip_types::{DataType, InferOutput, InferRequest, ModelMetadata, ServiceError, TensorMetadata};
use tonic::Code;
use tower::ServiceExt;

/// Models that give their input back; `hangs` not before it is released, cancelled or not, and `loads` is not loaded
/// before.
struct Hanging(Arc<AtomicBool>);

impl Backend for Hanging {
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
            is_released: (source.name == "hangs").then(|| self.0.clone()),
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
    metadata: ModelMetadata,
}

impl Model for HangingModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, mut request: InferRequest, _: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
        self.is_released.iter().for_each(|released| wait_for(released));
        Ok(vec![InferOutput::new("y", request.take_input("x")?)])
    }
}

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

/// An engine that has begun to load these models, the switch that releases what hangs, and both transports.
struct Setup {
    engine: Arc<Engine>,
    is_released: Arc<AtomicBool>,
    http: Router,
    grpc: GrpcInferenceServiceClient<GrpcService>,
    _folder: tempfile::TempDir,
}

impl Setup {
    fn of(models: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for model in models {
            let version = folder.path().join(model).join("1");
            std::fs::create_dir_all(&version).unwrap();
            std::fs::write(version.join("model.hanging"), "").unwrap();
        }
        let is_released = Arc::new(AtomicBool::new(false));
        let backend: Arc<dyn Backend> = Arc::new(Hanging(is_released.clone()));
        let config = EngineConfig::default().with(|config| {
            config.instances = 2;
            config.parallel_loads = 2;
            config.hang_timeout = Duration::from_millis(50);
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
async fn lc_08_live_but_not_ready_while_a_model_is_loaded() {
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
async fn md_05_a_model_that_hangs_costs_504s_then_itself_and_nothing_else() {
    let Setup {
        engine,
        is_released,
        http,
        mut grpc,
        _folder,
    } = Setup::of(&["hangs", "works"]);
    engine.wait_until_loaded();

    // Each of its two threads takes a request and does not come back.
    let (status, body) = post(&http, "hangs").await;
    assert_eq!(status, 504, "{body}");
    assert_eq!(call(&mut grpc, "hangs").await, Code::DeadlineExceeded);
    // Then it is known to be of no use, and its clients are told at once.
    let start = Instant::now();
    loop {
        let (status, body) = post(&http, "hangs").await;
        if status == 503 {
            assert!(
                body.contains("all of its 2 instances hang in requests that were given up"),
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

    // Nobody else notices.
    assert_eq!(get(&http, "/v2/health/live").await, 200);
    for _ in 0..20 {
        assert_eq!(post(&http, "works").await.0, 200);
        assert_eq!(call(&mut grpc, "works").await, Code::Ok);
    }
    // The end does not wait for it.
    let start = Instant::now();
    assert!(!engine.stop(start + Duration::from_millis(100)));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    is_released.store(true, Ordering::SeqCst);
}
