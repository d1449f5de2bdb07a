//! Counts and times of the requests to each model version, for the statistics extension and for metrics.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use oip_types::{BatchStatistics, ErrorCode, InferStatistics, ModelStatistics, StatisticDuration};
use parking_lot::{Mutex, MutexGuard};

/// The statistics of the requests to one version of a model.
///
/// Recording a batch takes the lock twice: once for the run, and once for the responses. Memory use does not
/// grow with the number of requests.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Record>);

#[derive(Default)]
struct Record {
    last_inference: u64,
    inference_count: u64,
    execution_count: u64,
    requests: InferStatistics,
    batches: BTreeMap<u64, BatchStatistics>,
    failures: BTreeMap<FailureReason, u64>,
    queue: Buckets,
    compute: Buckets,
    total: Buckets,
    rows: Buckets,
}

/// One run of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Execution {
    pub(crate) rows: u64,
    /// The time to concatenate the inputs.
    pub(crate) input: Duration,
    /// The time in the model.
    pub(crate) infer: Duration,
    /// The time to check and split the outputs.
    pub(crate) output: Duration,
}

/// The outcome of one request.
pub(crate) struct Ending {
    /// The run that computed the response; `None` if the request was not run.
    pub(crate) execution: Option<Execution>,
    pub(crate) rows: u64,
    /// Time that the request spent in the queue.
    pub(crate) queue: Duration,
    /// The time from arrival to response.
    pub(crate) total: Duration,
    /// The error code of a failed request.
    pub(crate) failure: Option<ErrorCode>,
}

/// Failure reasons with Triton's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FailureReason {
    /// The request was not run: the queue was full, the deadline passed, or the model was unavailable.
    Rejected,
    /// The client disconnected.
    Canceled,
    /// The model returned an error.
    Backend,
    /// The request did not match the model, or its deadline or memory ran out during the run.
    Other,
}

impl FailureReason {
    /// All failure reasons.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Canceled, Self::Backend, Self::Other];

    /// Returns the label value that Triton's metrics use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "REJECTED",
            Self::Canceled => "CANCELED",
            Self::Backend => "BACKEND",
            Self::Other => "OTHER",
        }
    }
}

impl FailureReason {
    /// Returns the reason for an error code, depending on whether the request was run.
    fn of(code: ErrorCode, was_run: bool) -> Self {
        match code {
            ErrorCode::Cancelled => Self::Canceled,
            ErrorCode::Internal => Self::Backend,
            // For example, the model's process has exited.
            ErrorCode::Unavailable if was_run => Self::Backend,
            ErrorCode::Overloaded | ErrorCode::Unavailable | ErrorCode::DeadlineExceeded if !was_run => {
                Self::Rejected
            }
            _ => Self::Other,
        }
    }
}

/// The statistics of one version of a model since it was loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VersionMetrics {
    /// Statistics as defined by the protocol's statistics extension.
    pub statistics: ModelStatistics,
    /// The number of failed requests by reason, without zero counts.
    pub failures: Vec<(FailureReason, u64)>,
    /// The number of queued requests.
    pub waiting: u64,
    /// Queue times in microseconds.
    pub queue: Histogram,
    /// Compute times in microseconds: inputs, model, outputs.
    pub compute: Histogram,
    /// Times from arrival to response in microseconds.
    pub total: Histogram,
    /// Rows per batch.
    pub batch_rows: Histogram,
}

/// Distribution of values over buckets with fixed bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Histogram {
    /// The inclusive upper bounds of the buckets; the last bucket is unbounded.
    pub bounds: &'static [u64],
    /// The count of each bucket. Has one element more than `bounds`.
    pub counts: Vec<u64>,
    /// Sum of all recorded values.
    pub sum: u64,
}

impl Recorder {
    /// Records a run of the model.
    pub(crate) fn execution(&self, execution: &Execution) {
        self.lock().execution(execution);
    }

    /// Records the outcomes of requests.
    pub(crate) fn endings(&self, endings: impl IntoIterator<Item = Ending>) {
        let mut record = self.lock();
        for ending in endings {
            match ending.failure {
                None => record.success(&ending),
                Some(code) => record.failure(code, ending.execution.is_some(), ending.total),
            }
        }
    }

    /// Records a cache hit. `lookup` is the time of the cache lookup, `total` the time from arrival to
    /// response.
    pub(crate) fn hit(&self, lookup: Duration, total: Duration) {
        let mut record = self.lock();
        add(&mut record.requests.cache_hit, lookup);
        add(&mut record.requests.success, total);
        record.total.add(&TIMES, total.as_micros() as u64);
    }

    /// Records a cache miss. `time` covers the lookup and the insertion.
    pub(crate) fn miss(&self, time: Duration) {
        add(&mut self.lock().requests.cache_miss, time);
    }

    /// Records a request that failed without being run.
    pub(crate) fn failure(&self, code: ErrorCode, total: Duration) {
        self.lock().failure(code, false, total);
    }

    pub(crate) fn snapshot(&self, name: &str, version: Option<&str>, waiting: usize) -> VersionMetrics {
        let record = self.lock();
        VersionMetrics {
            statistics: ModelStatistics {
                name: name.to_owned(),
                version: version.unwrap_or_default().to_owned(),
                last_inference: record.last_inference,
                inference_count: record.inference_count,
                execution_count: record.execution_count,
                inference_stats: record.requests,
                batch_stats: record.batches.values().copied().collect(),
                ..ModelStatistics::default()
            },
            failures: record
                .failures
                .iter()
                .map(|(reason, count)| (*reason, *count))
                .collect(),
            waiting: waiting as u64,
            queue: record.queue.snapshot(&TIMES),
            compute: record.compute.snapshot(&TIMES),
            total: record.total.snapshot(&TIMES),
            batch_rows: record.rows.snapshot(&ROWS),
        }
    }

    /// Locks the record.
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock()
    }
}

impl Record {
    fn execution(&mut self, execution: &Execution) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_inference = now.as_millis() as u64;
        self.execution_count += 1;
        self.rows.add(&ROWS, execution.rows);
        // Requests with unlimited row counts must not grow this map without bound.
        let is_known = self.batches.contains_key(&execution.rows);
        if is_known || self.batches.len() < MAX_BATCH_SIZES {
            let batch = self.batches.entry(execution.rows).or_default();
            batch.batch_size = execution.rows;
            add(&mut batch.compute_input, execution.input);
            add(&mut batch.compute_infer, execution.infer);
            add(&mut batch.compute_output, execution.output);
        }
    }

    /// Records a successful request. Each request of a batch counts the time of the whole batch, as in
    /// Triton.
    fn success(&mut self, ending: &Ending) {
        let execution = &ending.execution.unwrap_or_default();
        let requests = &mut self.requests;
        self.inference_count = self.inference_count.saturating_add(ending.rows);
        add(&mut requests.success, ending.total);
        add(&mut requests.queue, ending.queue);
        add(&mut requests.compute_input, execution.input);
        add(&mut requests.compute_infer, execution.infer);
        add(&mut requests.compute_output, execution.output);
        let compute = execution.input + execution.infer + execution.output;
        self.queue.add(&TIMES, ending.queue.as_micros() as u64);
        self.compute.add(&TIMES, compute.as_micros() as u64);
        self.total.add(&TIMES, ending.total.as_micros() as u64);
    }

    fn failure(&mut self, code: ErrorCode, was_run: bool, total: Duration) {
        add(&mut self.requests.fail, total);
        let reason = FailureReason::of(code, was_run);
        *self.failures.entry(reason).or_default() += 1;
    }
}

fn add(sum: &mut StatisticDuration, time: Duration) {
    sum.count += 1;
    sum.ns = sum.ns.saturating_add(time.as_nanos() as u64);
}

/// The counts and the sum of a histogram.
#[derive(Default)]
struct Buckets {
    counts: [u64; MAX_BUCKETS],
    sum: u64,
}

impl Buckets {
    fn add(&mut self, bounds: &[u64], value: u64) {
        self.counts[bounds.partition_point(|bound| *bound < value)] += 1;
        // The sum saturates, because a tensor without elements may have 2^63 - 1 rows.
        self.sum = self.sum.saturating_add(value);
    }

    fn snapshot(&self, bounds: &'static [u64]) -> Histogram {
        Histogram {
            bounds,
            counts: self.counts[..=bounds.len()].to_vec(),
            sum: self.sum,
        }
    }
}

/// Bucket bounds for times in microseconds, from the smallest models to the default deadline.
const TIMES: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// Bucket bounds for batch sizes.
const ROWS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

const MAX_BUCKETS: usize = TIMES.len() + 1;

/// The maximum number of distinct batch sizes. Further sizes count only in the sums.
const MAX_BATCH_SIZES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn sum(count: u64, micros: u64) -> StatisticDuration {
        StatisticDuration {
            count,
            ns: micros * 1_000,
        }
    }

    #[test]
    fn every_stage_is_counted_per_request_and_per_batch_size() {
        let recorder = Recorder::default();
        let execution = Execution {
            rows: 5,
            input: micros(10),
            infer: micros(300),
            output: micros(20),
        };
        let ending = |rows, queue, failure| Ending {
            execution: Some(execution),
            rows,
            queue: micros(queue),
            total: micros(1_000),
            failure,
        };
        recorder.execution(&execution);
        recorder.endings([
            ending(2, 40, None),
            ending(2, 60, None),
            ending(1, 0, Some(ErrorCode::Internal)),
        ]);
        recorder.failure(ErrorCode::Overloaded, micros(5));
        let metrics = recorder.snapshot("m", Some("3"), 7);
        let statistics = &metrics.statistics;
        assert!(statistics.last_inference > 1_600_000_000_000);
        assert_eq!((statistics.inference_count, statistics.execution_count), (4, 1));
        assert_eq!(
            statistics.inference_stats,
            InferStatistics {
                success: sum(2, 2_000),
                fail: sum(2, 1_005),
                queue: sum(2, 100),
                compute_input: sum(2, 20),
                compute_infer: sum(2, 600),
                compute_output: sum(2, 40),
                ..InferStatistics::default()
            }
        );
        assert_eq!(
            statistics.batch_stats,
            [BatchStatistics {
                batch_size: 5,
                compute_input: sum(1, 10),
                compute_infer: sum(1, 300),
                compute_output: sum(1, 20),
            }]
        );
        assert_eq!(
            metrics.failures,
            [(FailureReason::Rejected, 1), (FailureReason::Backend, 1)]
        );
        assert_eq!(
            (metrics.waiting, metrics.queue.sum, metrics.compute.sum),
            (7, 100, 660)
        );
        // 40 falls into the bucket up to 50, 60 into the bucket up to 100.
        assert_eq!(metrics.queue.counts[..3], [1, 1, 0]);
        assert_eq!(metrics.total.counts[4..6], [2, 0], "a bound is included");
        assert_eq!(metrics.batch_rows.counts[3], 1);
    }

    #[test]
    fn only_requests_that_were_not_run_are_rejected() {
        use ErrorCode::{
            Cancelled, DeadlineExceeded, Internal, InvalidArgument, Overloaded, TooLarge, Unavailable,
        };
        use FailureReason::{Backend, Canceled, Other, Rejected};
        for (code, not_run, run) in [
            (Overloaded, Rejected, Other),
            (DeadlineExceeded, Rejected, Other),
            (Unavailable, Rejected, Backend),
            (Cancelled, Canceled, Canceled),
            (Internal, Backend, Backend),
            (TooLarge, Other, Other),
            (InvalidArgument, Other, Other),
        ] {
            for (execution, expected) in [(None, not_run), (Some(Execution::default()), run)] {
                let recorder = Recorder::default();
                recorder.endings([Ending {
                    execution,
                    rows: 1,
                    queue: Duration::ZERO,
                    total: micros(1),
                    failure: Some(code),
                }]);
                assert_eq!(
                    recorder.snapshot("m", None, 0).failures,
                    [(expected, 1)],
                    "{code:?}"
                );
            }
        }
    }

    /// A tensor without elements can have up to `i64::MAX` rows, so the sums must saturate.
    #[test]
    fn sums_stay_at_their_largest_value() {
        let recorder = Recorder::default();
        let execution = Execution {
            rows: i64::MAX as u64,
            ..Execution::default()
        };
        for _ in 0..3 {
            recorder.execution(&execution);
            recorder.endings([Ending {
                execution: Some(execution),
                rows: i64::MAX as u64,
                queue: Duration::ZERO,
                total: Duration::from_secs(u64::MAX),
                failure: None,
            }]);
        }
        let metrics = recorder.snapshot("m", None, 0);
        assert_eq!(metrics.statistics.inference_count, u64::MAX);
        assert_eq!(
            (metrics.batch_rows.sum, metrics.total.counts.iter().sum::<u64>()),
            (u64::MAX, 3)
        );
    }

    #[test]
    fn values_beyond_all_bounds_and_sizes_without_number_are_counted_too() {
        let recorder = Recorder::default();
        for rows in 1..=2_000 {
            let execution = Execution {
                rows,
                ..Execution::default()
            };
            recorder.execution(&execution);
        }
        let metrics = recorder.snapshot("m", None, 0);
        assert_eq!(metrics.statistics.execution_count, 2_000);
        assert_eq!(metrics.statistics.batch_stats.len(), MAX_BATCH_SIZES);
        assert_eq!(metrics.batch_rows.counts.iter().sum::<u64>(), 2_000);
        assert_eq!(metrics.batch_rows.counts.last(), Some(&(2_000 - 1_024)));
        assert_eq!(metrics.batch_rows.counts.len(), ROWS.len() + 1);
    }
}
