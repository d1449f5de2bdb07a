//! Benchmarks scikit-learn models on each runtime of this backend.
//!
//! ```text
//! cargo bench -p backend-onnx --bench models [-- MODEL.onnx...]
//! ```
//!
//! Without paths, the benchmark runs the server's example models. Each model must have one FP32 input whose
//! first dimension is free. Models and inputs are in memory, and caches are warm. A run is one call with
//! prepared inputs, whose outputs are dropped. If `ORT_DYLIB_PATH` is set, ONNX Runtime runs the same models
//! for comparison. `benches/onnx_runtime.py` measures ONNX Runtime from Python, without this backend.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::path::{Path, PathBuf};

use backend_onnx::{OnnxBackend, OnnxRuntime};
use bench_kit::Comparison;
use oip_model::{Backend, CancelToken, LoadContext, Model, ModelSource};
use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

/// Number of calls per time measurement.
const CALLS: usize = 50;

fn main() {
    let given: Vec<PathBuf> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .map(PathBuf::from)
        .collect();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oip-server/examples/models");
    let paths = match given.is_empty() {
        true => ["digits", "digits_forest"]
            .map(|name| examples.join(name).join("1/model.onnx"))
            .to_vec(),
        false => given,
    };
    for path in paths {
        for rows in [1, 32] {
            compare(&path, rows);
        }
    }
}

fn compare(path: &Path, rows: usize) {
    let model = load(&OnnxBackend::new(), path);
    let library = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty());
    let library = library.map(|path| OnnxRuntime::load(path).unwrap());
    let by_library = library.map(|library| load(&OnnxBackend::new().with_runtime(library), path));
    let input = &model.metadata().inputs[0];
    let width = input.shape.dims()[1].unwrap() as usize;
    let values: Vec<f32> = (0..rows * width)
        .map(|index| (index * 7919 % 17) as f32)
        .collect();
    let tensor = Tensor::from_vec(Shape::new(&[rows as u64, width as u64]).unwrap(), values.clone()).unwrap();
    let token = CancelToken::new(None);

    let title = format!("{}, {rows} rows: {CALLS} calls", path.display());
    let mut comparison = Comparison::new(title).rounds(7);
    let run = |model: &dyn Model| {
        for _ in 0..CALLS {
            let request =
                InferRequest::new(ModelRef::new("m", None).unwrap()).with_input(&input.name, tensor.clone());
            model.infer(request, &token).unwrap();
        }
    };
    comparison.add("backend-onnx, built-in", || run(&*model));
    if let Some(model) = &by_library {
        comparison.add("backend-onnx on ONNX Runtime", || run(&**model));
    }
    for time in comparison.run() {
        println!("  {:.1} us a call", time.as_secs_f64() * 1e6 / CALLS as f64);
    }
}

fn load(backend: &OnnxBackend, path: &Path) -> Box<dyn Model> {
    let source = ModelSource::new("m", "1", path, std::fs::read(path).unwrap().into());
    backend.load(&source, &LoadContext::default()).unwrap()
}
