//! Benchmarks alternatives against each other in one process and prints medians and ratios.
//!
//! Machines are noisy, so absolute times are of little use. Alternatives that run interleaved, in a new
//! random order each round, see the same noise. The output is the median over all rounds and its ratio to the
//! median of the first alternative.
//!
//! ```
//! let numbers: Vec<u64> = (0..1000).collect();
//! let mut comparison = bench_kit::Comparison::new("sum of 1000 numbers");
//! comparison.add("iterator", || numbers.iter().sum::<u64>());
//! comparison.add("loop", || {
//!     let mut sum = 0;
//!     for number in &numbers {
//!         sum += number;
//!     }
//!     sum
//! });
//! let medians = comparison.rounds(5).run();
//! assert_eq!(medians.len(), 2);
//! ```
#![allow(clippy::print_stdout, reason = "benchmarks print their figures")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// A benchmark of alternatives that do the same work.
pub struct Comparison<'a> {
    title: String,
    rounds: usize,
    alternatives: Vec<(String, Box<dyn FnMut() -> Duration + 'a>)>,
}

impl<'a> Comparison<'a> {
    /// Creates a comparison without alternatives. `title` is printed above the table.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            rounds: 31,
            alternatives: Vec::new(),
        }
    }

    /// Sets the number of rounds (default 31, after one warm-up round).
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self
    }

    /// Adds an alternative; the first one is the baseline. Dropping the result is not timed.
    pub fn add<R>(&mut self, label: impl Into<String>, mut work: impl FnMut() -> R + 'a) {
        let timed = move || {
            let start = Instant::now();
            let result = black_box(work());
            let elapsed = start.elapsed();
            drop(result);
            elapsed
        };
        self.alternatives.push((label.into(), Box::new(timed)));
    }

    /// Runs all alternatives interleaved, prints a table and returns the medians in order.
    ///
    /// The order is shuffled for each round, with a fixed seed. In a fixed order, an alternative that
    /// disturbs caches and memory would slow down its successor in every round.
    pub fn run(mut self) -> Vec<Duration> {
        let mut times = vec![Vec::with_capacity(self.rounds); self.alternatives.len()];
        let mut order: Vec<usize> = (0..self.alternatives.len()).collect();
        let mut random = fastrand::Rng::with_seed(0);
        for round in 0..=self.rounds {
            random.shuffle(&mut order);
            for &index in &order {
                let elapsed = (self.alternatives[index].1)();
                if round > 0 {
                    times[index].push(elapsed);
                }
            }
        }
        println!("\n{} ({} rounds)", self.title, self.rounds);
        println!(
            "{:<44} {:>12} {:>12} {:>12} {:>8}",
            "", "min", "median", "max", "ratio"
        );
        let mut medians: Vec<Duration> = Vec::new();
        for ((label, _), times) in self.alternatives.iter().zip(&mut times) {
            times.sort_unstable();
            let median = times[times.len() / 2];
            medians.push(median);
            let ratio = median.as_secs_f64() / medians[0].as_secs_f64();
            let [min, mid, max] = [times[0], median, times[times.len() - 1]].map(show);
            println!("{label:<44} {min:>12} {mid:>12} {max:>12} {ratio:>7.2}x");
        }
        medians
    }
}

/// Formats a duration in a suitable unit.
fn show(duration: Duration) -> String {
    let nanos = duration.as_nanos() as f64;
    match nanos {
        0.0..1e4 => format!("{nanos:.0} ns"),
        1e4..1e7 => format!("{:.1} us", nanos / 1e3),
        _ => format!("{:.2} ms", nanos / 1e6),
    }
}
