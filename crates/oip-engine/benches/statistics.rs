//! Measures the cost of the statistics: the clock and the recorder, used for each batch as in
//! `src/run/runner.rs`.
//!
//! ```text
//! cargo bench -p oip-engine --bench statistics
//! ```
//!
//! For comparison, `cargo bench -p oip-engine --bench engine` measures a whole request.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use bench_kit::Comparison;

// The recorder is private, so the benchmark compiles the recorder's source file, which depends on nothing
// else in the crate.
#[allow(dead_code, unreachable_pub, reason = "only counting is measured")]
#[path = "../src/statistics.rs"]
mod statistics;

use statistics::{Ending, Execution, Recorder};

fn main() {
    const REQUESTS: usize = 640_000;
    for threads in [1, 2] {
        for size in [1, 8, 64] {
            let recorder = Recorder::default();
            let title = format!("{REQUESTS} requests in batches of {size}, {threads} threads");
            let mut comparison = Comparison::new(title).rounds(21);
            let each = REQUESTS / threads / size;
            comparison.add("clock and record", || {
                on_threads(threads, || (0..each).for_each(|_| batch(&recorder, size)));
            });
            comparison.add("clock", || {
                on_threads(threads, || (0..each).for_each(|_| _ = black_box(clock())));
            });
            let medians = comparison.run();
            // CPU time per request: each thread has its own processor.
            let per_request =
                |median: Duration| median.as_secs_f64() * 1e9 * threads as f64 / REQUESTS as f64;
            let [both, clock] = [0, 1].map(|index| per_request(medians[index]));
            println!("{both:.0} ns per request, {clock:.0} of them for the clock\n");
        }
    }
    let recorder = Recorder::default();
    (0..10_000).for_each(|size| batch(&recorder, size % 64 + 1));
    let mut comparison = Comparison::new("100 snapshots of versions with 64 batch sizes");
    comparison.add("snapshots", || {
        (0..100).for_each(|_| drop(black_box(recorder.snapshot("digits", Some("1"), 0))));
    });
    comparison.run();
}

fn on_threads(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(&work))));
}

/// Reads the clock four times, as the engine does for each batch.
fn clock() -> [Instant; 4] {
    [(); 4].map(|()| black_box(Instant::now()))
}

/// Records a batch of `size` requests of one row.
fn batch(recorder: &Recorder, size: usize) {
    let [taken, start, called, end] = clock();
    let execution = Execution {
        rows: size as u64,
        input: start - taken,
        infer: called - start,
        output: end - called,
    };
    let ending = |_| Ending {
        execution: Some(execution),
        rows: 1,
        queue: end.saturating_duration_since(taken),
        total: end.saturating_duration_since(start),
        failure: None,
    };
    let endings: Vec<Ending> = (0..size).map(ending).collect();
    recorder.execution(&execution);
    recorder.endings(black_box(endings));
}
