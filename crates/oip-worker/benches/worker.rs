//! Measures the cost of running a model in a separate process: per request, per start and per byte.
//!
//! ```text
//! cargo bench -p oip-worker --bench worker
//! ```
//!
//! The model returns its input, so only the transfer is measured. In the results "in a worker", the worker is
//! this program, started again.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{
    fs,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use bench_kit::Comparison;
use oip_model::{Backend, Call, CancelToken, LoadContext, Model, ModelSource, Outcome};
use oip_types::{DataType, InferRequest, ModelMetadata, ModelRef, ServiceError, TensorMetadata};
use oip_worker::{IsolatedBackend, Isolation};
use tensor_core::{Shape, Tensor};

/// The first argument that starts this program as a worker.
const WORKER: &str = "worker";

/// Number of starts that are timed.
const STARTS: usize = 31;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|argument| argument == WORKER) {
        return oip_worker::run(&[Arc::new(Echo)]);
    }
    let (inside, isolated) = (load(false), load(true));
    for (elements, calls) in [(1, 1000), (16 << 10, 500), (1 << 20, 20), (16 << 20, 3)] {
        let x = Tensor::from_vec(Shape::vector(elements), vec![1.5f32; elements as usize]).unwrap();
        let request = InferRequest::new(ModelRef::new("echo", None).unwrap()).with_input("x", x);
        let cancel = CancelToken::new(Some(Instant::now() + Duration::from_secs(3600)));
        let bytes = elements * 4;
        let mut comparison = Comparison::new(format!("{calls} requests of {bytes} bytes, and as much back"));
        for (label, model) in [("in this process", &inside), ("in a worker", &isolated)] {
            let (request, cancel) = (&request, &cancel);
            comparison.add(label, move || {
                (0..calls).for_each(|_| drop(model.infer(request.clone(), cancel).unwrap()));
            });
        }
        let medians = comparison.run();
        let [inside, isolated] = [0, 1].map(|index| medians[index].as_secs_f64() * 1e6 / f64::from(calls));
        println!("{inside:.1} us and {isolated:.1} us a request");
    }
    let (mut starts, mut ends): (Vec<Duration>, Vec<Duration>) = (0..STARTS)
        .map(|_| {
            let start = Instant::now();
            let model = load(true);
            let loaded = Instant::now();
            drop(model);
            (loaded - start, loaded.elapsed())
        })
        .unzip();
    starts.sort();
    ends.sort();
    println!(
        "\na worker from nothing to loaded: median {:.1?} of {STARTS}; its end: {:.1?}",
        starts[STARTS / 2],
        ends[STARTS / 2]
    );
    println!("resident when it is loaded: {:.1} MiB", resident_mib());
    ExitCode::SUCCESS
}

/// Returns the resident memory of a worker that has just been started, in MiB.
fn resident_mib() -> f64 {
    let model = load(true);
    let of = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u32>().ok()
        };
        (field("PPid:")? == std::process::id()).then_some((pid, field("VmRSS:")?))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The newest process has the highest process id.
    let (_, kib) = numbers.filter_map(of).max().unwrap();
    drop(model);
    f64::from(kib) / 1024.0
}

fn load(is_isolated: bool) -> Box<dyn Model> {
    let isolation = Isolation::new(|| {
        let mut command = Command::new(oip_worker::this_program());
        command.arg(WORKER);
        command
    });
    let backend = IsolatedBackend::new(Arc::new(Echo), isolation.by_default(is_isolated));
    let source = ModelSource::new("echo", "1", "model.echo", Vec::new().into());
    backend.load(&source, &LoadContext::default()).unwrap()
}

struct Echo;

impl Backend for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn file_names(&self) -> &[&str] {
        &["model.echo"]
    }

    fn load(&self, _: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        Ok(Box::new(EchoModel(ModelMetadata::new(
            String::new(),
            "bench_echo",
            vec![TensorMetadata::new("x", DataType::FP32, &[-1])],
            vec![TensorMetadata::new("y", DataType::FP32, &[-1])],
        ))))
    }
}

struct EchoModel(ModelMetadata);

impl Model for EchoModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        Ok(Outcome::output("y", call.request.take_input("x")?))
    }
}
