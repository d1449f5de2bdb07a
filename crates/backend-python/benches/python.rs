//! Benchmarks the overhead of a Python model over a model in the server: per request, and per process start.
//!
//! ```text
//! TENSORFERRY_PYTHON=path/to/venv cargo bench -p backend-python --bench python
//! ```
//!
//! The model returns its input, or a copy of it, so that only the transport is measured. The interpreter
//! needs NumPy.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{
    env, fs,
    time::{Duration, Instant},
};

use backend_python::{PythonBackend, Settings};
use bench_kit::Comparison;
use oip_model::{Backend, Call, CancelToken, LoadContext, Model, ModelSource, Outcome};
use oip_types::{InferRequest, ModelMetadata, ModelRef, ServiceError};
use tensor_core::{Shape, Tensor};

const IDENTITY: &str = r#"
class Model:
    inputs = {"x": ("FP32", [-1, -1])}
    outputs = {"y": ("FP32", [-1, -1])}

    def infer(self, x):
        return {"y": x}
"#;

const TRITON: &str = r#"
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1, -1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1, -1]})
        return config

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]) for x in inputs]
"#;

/// A model that returns its input.
struct Echo(ModelMetadata);

impl Model for Echo {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        Ok(Outcome::output("y", call.request.take_input("x")?))
    }
}

fn main() {
    let identity = load(IDENTITY);
    let copying = load(&IDENTITY.replace(r#"{"y": x}"#, r#"{"y": x.copy()}"#));
    let triton = load(TRITON);
    let models: [(&str, Box<dyn Model>); 4] = [
        ("in the server", Box::new(Echo(identity.metadata().clone()))),
        ("in Python", identity),
        ("in Python, a copy", copying),
        ("in Triton's form", triton),
    ];
    for (rows, columns, calls) in [
        (1, 16, 2000),
        (1, 16 << 10, 500),
        (64, 4 << 10, 100),
        (64, 64 << 10, 10),
    ] {
        let elements = rows * columns;
        let shape = Shape::new(&[rows, columns]).unwrap();
        let x = Tensor::from_vec(shape, vec![1.5f32; elements as usize]).unwrap();
        let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", x);
        let cancel = CancelToken::new(Some(Instant::now() + Duration::from_secs(3600)));
        let bytes = elements * 4;
        let mut comparison = Comparison::new(format!("{calls} requests of {bytes} bytes, and as much back"));
        for (label, model) in &models {
            let (request, cancel) = (&request, &cancel);
            comparison.add(*label, move || {
                (0..calls).for_each(|_| drop(model.infer(request.clone(), cancel).unwrap()));
            });
        }
        let medians = comparison.run();
        for ((label, _), median) in models.iter().zip(medians) {
            println!(
                "{label}: {:.1} us a request",
                median.as_secs_f64() * 1e6 / f64::from(calls)
            );
        }
    }
    let mut starts: Vec<Duration> = (0..15)
        .map(|_| {
            let start = Instant::now();
            let model = load(IDENTITY);
            let loaded = start.elapsed();
            drop(model);
            loaded
        })
        .collect();
    starts.sort();
    println!(
        "\na process from nothing to loaded: median {:.1?} of {}",
        starts[starts.len() / 2],
        starts.len()
    );
}

fn load(source: &str) -> Box<dyn Model> {
    let folder = env::temp_dir().join(format!("tensorferry-bench-{}", std::process::id()));
    fs::create_dir_all(folder.join("1")).unwrap();
    let path = folder.join("1/model.py");
    fs::write(&path, source).unwrap();
    let settings = Settings::default().with(|settings| {
        settings.is_allowed = true;
        if let Some(python) = env::var_os("TENSORFERRY_PYTHON") {
            settings.interpreter = python.into();
        }
    });
    let source = ModelSource::new("m", "1", &path, source.to_owned().into());
    let deadline = Some(Instant::now() + Duration::from_secs(60));
    let loaded = PythonBackend::new(settings).load(&source, &LoadContext::default().with_deadline(deadline));
    fs::remove_dir_all(&folder).unwrap();
    loaded.unwrap()
}
