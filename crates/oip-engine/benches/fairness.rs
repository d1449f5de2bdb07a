//! Measures how a flooded model affects another model and the health calls.
//!
//! ```text
//! cargo bench -p oip-engine --bench fairness
//! ```
//!
//! One caller sends sequential requests to one model while 64 callers keep the queue of another model full.
//! The flooded model first sleeps, as if it were waiting for a disk or another machine, and then computes on
//! as many threads as there are cores.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{
    fs, hint,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{Backend, Call, LoadContext, Model, ModelSource, Outcome};
use oip_service::{InferenceService, RequestContext};
use oip_types::{DataType, ErrorCode, InferRequest, ModelMetadata, ModelRef, ServiceError, TensorMetadata};
use tensor_core::{Shape, Tensor};

const CALLERS: usize = 64;
const REQUESTS: usize = 2_000;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    for (model, work) in [
        ("small", "computes 200"),
        ("medium", "computes 2000"),
        ("waits", "waits 2000"),
        ("computes", "computes 2000"),
    ] {
        let version = folder.path().join(model).join("1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("model.work"), work).unwrap();
    }
    let repository = Repository::open(folder.path(), &[Arc::new(Work)], None).unwrap();
    let engine = Engine::start(repository, EngineConfig::default());
    engine.wait_until_loaded();
    assert!(engine.readiness().is_ready(), "{:?}", engine.models());

    for (model, time) in [("small", "200 us"), ("medium", "2 ms")] {
        println!("\na model of {time}, one caller, {REQUESTS} requests\n");
        println!("{:<44}{:>10}{:>10}{:>18}", "", "p50", "p99", "slowest health");
        let alone = measure(&engine, model, "by itself");
        for flooded in ["waits", "computes"] {
            let label = format!("next to a flooded model that {flooded} (2 ms)");
            let beside = flood(&engine, flooded, || measure(&engine, model, &label));
            let ratio = beside.as_secs_f64() / alone.as_secs_f64();
            println!("  p99 is {ratio:.1}x that by itself");
        }
    }
}

/// Runs `work` while the queue of `model` is kept full.
fn flood<R>(engine: &Engine, model: &str, work: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if let Err(error) = infer(engine, model) {
                        assert_eq!(error.code(), ErrorCode::Overloaded, "{error}");
                    }
                }
            });
        }
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Prints the latency of `model` and returns its 99th percentile.
fn measure(engine: &Engine, model: &str, label: &str) -> Duration {
    let mut health = Duration::ZERO;
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|_| {
            let start = Instant::now();
            infer(engine, model).unwrap();
            let took = start.elapsed();
            let start = Instant::now();
            assert!(engine.readiness().is_ready());
            health = health.max(start.elapsed());
            took
        })
        .collect();
    times.sort_unstable();
    let (p50, p99) = (times[REQUESTS / 2], times[REQUESTS * 99 / 100]);
    let micros = |time: Duration| format!("{} us", time.as_micros());
    println!(
        "{label:<44}{:>10}{:>10}{:>18}",
        micros(p50),
        micros(p99),
        micros(health)
    );
    p99
}

fn infer(engine: &Engine, model: &str) -> Result<(), ServiceError> {
    let x = Tensor::from_vec(Shape::vector(1), vec![1f32]).unwrap();
    let request = InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("x", x);
    let deadline = Instant::now() + Duration::from_secs(30);
    block_on(engine.infer(request, RequestContext::new(Some(deadline)))).map(drop)
}

/// A backend for models whose files contain how long the model sleeps or computes, in microseconds. The
/// models do not batch.
struct Work;

impl Backend for Work {
    fn name(&self) -> &'static str {
        "work"
    }

    fn file_names(&self) -> &[&str] {
        &["model.work"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let text = std::str::from_utf8(&source.content).unwrap();
        let (kind, micros) = text.split_once(' ').unwrap();
        let tensor = |name: &str| TensorMetadata::new(name, DataType::FP32, &[1]);
        Ok(Box::new(WorkModel {
            computes: kind == "computes",
            time: Duration::from_micros(micros.parse().unwrap()),
            metadata: ModelMetadata::new("", "bench_work", vec![tensor("x")], vec![tensor("y")]),
        }))
    }
}

struct WorkModel {
    computes: bool,
    time: Duration,
    metadata: ModelMetadata,
}

impl Model for WorkModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        if self.computes {
            let end = Instant::now() + self.time;
            while Instant::now() < end {
                hint::spin_loop();
            }
        } else {
            thread::sleep(self.time);
        }
        Ok(Outcome::output("y", call.request.take_input("x")?))
    }
}
