//! Benchmarks gathering rows of a large table: the model, and the engine around it, compared with a bare loop
//! of `memcpy`.
//!
//! `cargo bench -p backend-tensors --bench gather` takes two gigabytes of memory.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::sync::Arc;

use backend_tensors::TensorsBackend;
use bench_kit::Comparison;
use bytes::Bytes;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{Backend, CancelToken, LoadContext, ModelSource};
use oip_service::{InferenceService, RequestContext};
use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

/// 1 GiB of FP32[1048576, 256]; the engine holds a second copy.
const ROWS: u64 = 1 << 20;
const WIDTH: usize = 256;
const ROW_BYTES: usize = WIDTH * 4;

/// Number of rows per request, and of requests per round; each request has different rows.
const PICKED: usize = 1000;
const REQUESTS: usize = 64;

fn main() {
    let content = file();
    let header_len = content.len() - ROWS as usize * ROW_BYTES;
    let table = content.slice(header_len..);
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), &content);
    let source = ModelSource::new("m", "1", "model.safetensors", content);
    let model = TensorsBackend::new()
        .load(&source, &LoadContext::default())
        .unwrap();

    let mut random = random();
    let scattered = || (0..PICKED).map(|_| (random() % ROWS) as i64).collect();
    compare("1,000 random rows", &table, &*model, &engine, scattered);
    let mut random = self::random();
    let neighbours = || {
        let starts = (0..PICKED / 50).map(|_| (random() % (ROWS - 50)) as i64);
        starts.flat_map(|start| start..start + 50).collect()
    };
    compare(
        "1,000 rows in 20 runs of 50",
        &table,
        &*model,
        &engine,
        neighbours,
    );
}

fn compare(
    title: &str,
    table: &Bytes,
    model: &dyn oip_model::Model,
    engine: &Engine,
    mut rows: impl FnMut() -> Vec<i64>,
) {
    // The rows of all requests together do not fit into any cache. Each alternative uses the requests that
    // follow those of the previous one.
    let picked: Vec<Vec<i64>> = (0..8 * REQUESTS).map(|_| rows()).collect();
    let requests: Vec<InferRequest> = picked.iter().map(|rows| request(rows)).collect();
    let at = std::cell::Cell::new(0);
    let turn = || {
        let start = at.get();
        at.set((start + REQUESTS) % picked.len());
        start..start + REQUESTS
    };
    let title = format!("{title} of 256 FP32, {REQUESTS} requests");
    let mut comparison = Comparison::new(title);
    comparison.add("bare loop of memcpy", || {
        for rows in &picked[turn()] {
            let mut out = Vec::with_capacity(PICKED * ROW_BYTES);
            for row in rows {
                let start = *row as usize * ROW_BYTES;
                out.extend_from_slice(&table[start..start + ROW_BYTES]);
            }
            std::hint::black_box(out);
        }
    });
    comparison.add("model", || {
        for request in &requests[turn()] {
            let outputs = model.infer(request.clone(), &CancelToken::new(None)).unwrap();
            std::hint::black_box(outputs);
        }
    });
    comparison.add("engine", || {
        for request in &requests[turn()] {
            let answer = engine.infer(request.clone(), RequestContext::new(None));
            std::hint::black_box(futures_executor::block_on(answer).unwrap());
        }
    });
    comparison.rounds(31).run();
}

fn request(rows: &[i64]) -> InferRequest {
    let rows = Tensor::from_vec(Shape::vector(rows.len() as u64), rows.to_vec()).unwrap();
    InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("embed.rows", rows)
}

/// Builds a safetensors file by hand, because a writer would need a second copy of the table in memory.
fn file() -> Bytes {
    let bytes = ROWS as usize * ROW_BYTES;
    let header =
        format!(r#"{{"embed":{{"dtype":"F32","shape":[{ROWS},{WIDTH}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = Vec::with_capacity(8 + header.len() + bytes);
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header.bytes());
    for element in 0..bytes / 4 {
        file.extend((element as f32).to_le_bytes());
    }
    file.into()
}

fn engine(folder: &std::path::Path, content: &Bytes) -> Engine {
    let version = folder.join("m/1");
    std::fs::create_dir_all(&version).unwrap();
    std::fs::write(version.join("model.safetensors"), content).unwrap();
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(TensorsBackend::new())];
    let engine = Engine::start(
        Repository::open(folder, &backends, None).unwrap(),
        EngineConfig::default(),
    );
    engine.wait_until_loaded();
    engine
}

/// Returns a deterministic random number generator (xorshift).
fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
