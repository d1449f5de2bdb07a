//! Measures the latency and throughput of the models, and how closely their outputs agree.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    client::{Client, Input},
    onnx::Random,
    server::{PATIENCE, Server},
};

/// A request that is measured.
#[derive(Clone, Copy)]
pub(super) enum Request {
    Images(u64),
    /// A batch of token sequences: the number of sequences, and their length.
    Texts(u64, u64),
}

impl Request {
    pub(super) fn inputs(self) -> Vec<Input> {
        let mut random = Random(42);
        vec![match self {
            Self::Images(count) => Input {
                name: "x",
                datatype: "FP32",
                shape: vec![count, 3, 224, 224],
                bytes: (0..count * 3 * 224 * 224)
                    .flat_map(|_| random.normal().to_le_bytes())
                    .collect(),
            },
            Self::Texts(count, length) => Input {
                name: "x",
                datatype: "INT64",
                shape: vec![count, length],
                bytes: (0..count * length)
                    .flat_map(|_| ((random.next() % 30_000) as i64).to_le_bytes())
                    .collect(),
            },
        }]
    }
}

/// Returns the median latency in milliseconds with one caller, over about 1.5 s and at least three requests,
/// after a warm-up request. If there are several requests, they are sent in turn.
pub(super) fn median(server: &Server, model: &str, requests: &[Request], patience: Duration) -> Result<f64> {
    let mut client = Client::connect(&server.address, PATIENCE)?;
    let requests: Vec<Vec<Input>> = requests.iter().map(|request| request.inputs()).collect();
    client.infer(model, &requests[0])?.numbers()?;
    let begun = Instant::now();
    let mut times = Vec::new();
    for inputs in requests.iter().cycle() {
        let start = Instant::now();
        client.infer(model, inputs)?.numbers()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let elapsed = begun.elapsed();
        if elapsed > patience || elapsed > Duration::from_millis(1500) && times.len() >= 3.max(requests.len())
        {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Returns the largest difference between two models' responses to a request, relative to the largest
/// absolute value.
pub(super) fn difference(server: &Server, models: [&str; 2], request: Request) -> Result<f64> {
    let mut client = Client::connect(&server.address, PATIENCE)?;
    let inputs = request.inputs();
    let one = client.infer(models[0], &inputs)?.numbers()?;
    let other = client.infer(models[1], &inputs)?.numbers()?;
    ensure!(one.len() == other.len(), "the responses have other sizes");
    let largest = one.iter().fold(0f32, |most, number| most.max(number.abs()));
    let pairs = one.iter().zip(&other);
    let differs = pairs.fold(0f32, |most, (one, other)| match (one - other).abs() {
        // NaN counts as the largest difference.
        difference if difference.is_nan() => f32::INFINITY,
        difference => most.max(difference),
    });
    Ok(f64::from(differs) / f64::from(largest).max(f64::MIN_POSITIVE))
}

/// Returns the rows per second, and the number of failed requests, with `callers` concurrent callers, each of
/// which waits for its response.
pub(super) fn rate(
    server: &Server,
    model: &str,
    request: Request,
    callers: usize,
    time: Duration,
) -> Result<(f64, u64)> {
    let (answered, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let inputs = request.inputs();
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                let Ok(mut client) = Client::connect(&server.address, PATIENCE) else {
                    failed.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                while begun.elapsed() < time {
                    let outcome = client
                        .infer(model, &inputs)
                        .and_then(|response| response.numbers());
                    let counter = if outcome.is_ok() { &answered } else { &failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let rows = inputs[0].shape[0] * answered.load(Ordering::Relaxed);
    Ok((
        rows as f64 / begun.elapsed().as_secs_f64(),
        failed.load(Ordering::Relaxed),
    ))
}
