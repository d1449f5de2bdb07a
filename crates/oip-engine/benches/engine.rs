//! Measures the overhead of the engine per request, without sockets.
//!
//! ```text
//! cargo bench -p oip-engine --bench engine
//! ```
//!
//! Callers are tokio tasks, like those of a transport: each caller sends its next request when the response
//! arrives. The callers share the cores with the engine's threads.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use backend_onnx::OnnxBackend;
use bench_kit::Comparison;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{
    Backend, Call, CancelToken, Capabilities, IndependentRows, LoadContext, Model, ModelSource, Outcome,
    RowIndependence,
};
use oip_service::{InferenceService, RequestContext};
use oip_types::{
    BatchStatistics, DataType, InferRequest, ModelMetadata, ModelRef, ServiceError, TensorMetadata,
};
use tensor_core::{Shape, Tensor};
use tokio::runtime::Runtime;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    overhead(&runtime);
    digits(&runtime);
}

/// Measures a model that does nothing, so that only the engine's overhead remains.
fn overhead(runtime: &Runtime) {
    const REQUESTS: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("m/1");
    fs::create_dir_all(&version).unwrap();
    fs::write(version.join("model.nothing"), "").unwrap();
    let engine = |default_max_batch_size| {
        let config = EngineConfig::default().with(|config| {
            config.default_max_batch_size = default_max_batch_size;
        });
        engine(folder.path(), Arc::new(Nothing), config)
    };
    let (joined, single) = (engine(64), engine(0));
    let x = Tensor::from_vec(Shape::new(&[1, 64]).unwrap(), vec![0f32; 64]).unwrap();
    let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", x);
    for callers in [1, 8, 64] {
        let title = format!("{REQUESTS} requests to a model that does nothing, {callers} callers");
        let mut comparison = Comparison::new(title).rounds(11);
        comparison.add("each by itself", || {
            drive(runtime, &single, &request, callers, REQUESTS);
        });
        comparison.add("batched", || drive(runtime, &joined, &request, callers, REQUESTS));
        for (label, median) in ["each by itself", "batched"].iter().zip(comparison.run()) {
            let per_request = median.as_secs_f64() * 1e6 / REQUESTS as f64;
            println!("{label:<20} {per_request:>8.2} us per request");
        }
    }
    println!("mean batch over all of it: {:.1} rows", mean_batch(&joined));
}

/// Compares the digits network behind the engine with the bare backend.
fn digits(runtime: &Runtime) {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oip-server/examples/models");
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("digits/1");
    fs::create_dir_all(&version).unwrap();
    fs::copy(models.join("digits/1/model.onnx"), version.join("model.onnx")).unwrap();
    let content = fs::read(version.join("model.onnx")).unwrap();
    let source = ModelSource::new("digits", "1", version.join("model.onnx"), content.into());
    let backend = OnnxBackend::default();
    let model: Arc<dyn Model> = Arc::from(backend.load(&source, &LoadContext::default()).unwrap());
    for (callers, rows) in [(32, 1), (32, 8), (32, 64)] {
        let requests = 1_600_000 / (rows * callers + 32);
        let with = |config| engine(folder.path(), Arc::new(OnnxBackend::default()), config);
        let (engine, single) = (
            with(EngineConfig::default()),
            with(EngineConfig::default().with(|config| {
                config.instances = 1;
            })),
        );
        let request = image_request(&model, rows);
        // Warms up the engines. The batch sizes below are those of this run of `engine`.
        drive(runtime, &engine, &request, callers, requests);
        drive(runtime, &single, &request, callers, requests);
        let sizes = batch_sizes(&engine);
        let title = format!("digits, {callers} callers of {rows} rows, {requests} requests");
        let mut comparison = Comparison::new(title).rounds(9);
        comparison.add("backend, same batches", || bare(&model, &sizes, rows * requests));
        comparison.add("backend, request by request", || {
            bare(&model, &[(rows as u64, 1)], rows * requests);
        });
        comparison.add("served", || drive(runtime, &engine, &request, callers, requests));
        comparison.add("served, one instance", || {
            drive(runtime, &single, &request, callers, requests);
        });
        let medians = comparison.run();
        let rate = |median: Duration| (rows * requests) as f64 / median.as_secs_f64();
        let [same, by_request, served, by_one] = [0, 1, 2, 3].map(|index| rate(medians[index]));
        for (label, engine, served) in [
            ("served", &engine, served),
            ("served, one instance", &single, by_one),
        ] {
            println!(
                "{label}: {served:.0} rows/s, mean batch {:.1} rows",
                mean_batch(engine)
            );
            println!("  / backend with the same batches: {:.2}", served / same);
            println!("  / backend request by request:    {:.2}", served / by_request);
        }
    }
    println!("\nrows per call, one thread");
    for rows in [1, 8, 16, 32, 64, 128, 256] {
        let request = image_request(&model, rows);
        let cancel = CancelToken::new(None);
        let mut comparison = Comparison::new(format!("{rows} rows"));
        comparison.add("call", || {
            (0..50).for_each(|_| drop(model.infer(request.clone(), &cancel).unwrap()));
        });
        let per_row = comparison.run()[0].as_secs_f64() * 1e6 / 50.0 / rows as f64;
        println!("{per_row:.2} us per row");
    }
}

/// Sends `requests` requests from `callers` concurrent callers and waits for all responses.
fn drive(runtime: &Runtime, engine: &Arc<Engine>, request: &InferRequest, callers: usize, requests: usize) {
    let left = Arc::new(AtomicUsize::new(requests));
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, request, left) = (engine.clone(), request.clone(), left.clone());
            runtime.spawn(async move {
                let take = |left: usize| left.checked_sub(1);
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                    .is_ok()
                {
                    let deadline = Instant::now() + Duration::from_secs(30);
                    engine
                        .infer(request.clone(), RequestContext::new(Some(deadline)))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    callers
        .into_iter()
        .for_each(|caller| runtime.block_on(caller).unwrap());
}

/// Calls the backend from as many threads as the engine has, until `rows` rows have been processed. `sizes`
/// lists the batch sizes and how often each occurs.
fn bare(model: &Arc<dyn Model>, sizes: &[(u64, u64)], rows: usize) {
    let total: u64 = sizes.iter().map(|(size, count)| size * count).sum();
    let left: Vec<(InferRequest, AtomicUsize)> = sizes
        .iter()
        .map(|(size, count)| {
            let calls = (*count as f64 * rows as f64 / total as f64).round() as usize;
            (image_request(model, *size as usize), AtomicUsize::new(calls))
        })
        .collect();
    let cores = thread::available_parallelism().unwrap().get();
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let cancel = CancelToken::new(None);
                for (request, left) in &left {
                    let take = |left: usize| left.checked_sub(1);
                    while left
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                        .is_ok()
                    {
                        model.infer(request.clone(), &cancel).unwrap();
                    }
                }
            });
        }
    });
}

fn image_request(model: &Arc<dyn Model>, rows: usize) -> InferRequest {
    let input = &model.metadata().inputs[0];
    let width = input.shape.dims()[1].unwrap() as usize;
    let values: Vec<f32> = (0..rows * width)
        .map(|index| (index * 7919 % 17) as f32)
        .collect();
    let tensor = Tensor::from_vec(Shape::new(&[rows as u64, width as u64]).unwrap(), values).unwrap();
    InferRequest::new(ModelRef::new("digits", None).unwrap()).with_input(&input.name, tensor)
}

fn engine(root: &Path, backend: Arc<dyn Backend>, config: EngineConfig) -> Arc<Engine> {
    let engine = Engine::start(Repository::open(root, &[backend], None).unwrap(), config);
    engine.wait_until_loaded();
    assert!(engine.readiness().is_ready(), "{:?}", engine.models());
    Arc::new(engine)
}

fn batch_sizes(engine: &Engine) -> Vec<(u64, u64)> {
    let count = |batch: &BatchStatistics| (batch.batch_size, batch.compute_infer.count);
    engine.metrics()[0]
        .statistics
        .batch_stats
        .iter()
        .map(count)
        .collect()
}

fn mean_batch(engine: &Engine) -> f64 {
    let statistics = &engine.metrics()[0].statistics;
    statistics.inference_count as f64 / statistics.execution_count as f64
}

/// A backend whose models return their input unchanged.
struct Nothing;

impl Backend for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn file_names(&self) -> &[&str] {
        &["model.nothing"]
    }

    fn load(&self, _: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        Ok(Box::new(NothingModel(ModelMetadata::new(
            "",
            "bench_nothing",
            vec![TensorMetadata::new("x", DataType::FP32, &[-1, 64])],
            vec![TensorMetadata::new("y", DataType::FP32, &[-1, 64])],
        ))))
    }
}

struct NothingModel(ModelMetadata);

impl Model for NothingModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        Ok(Outcome::output("y", call.request.take_input("x")?))
    }

    fn capabilities(&self) -> Capabilities {
        let rows = RowIndependence::Proven(IndependentRows::default());
        Capabilities::default().with(|capabilities| capabilities.row_independence = rows)
    }
}
