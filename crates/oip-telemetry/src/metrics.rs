//! Pushes metrics to a collector periodically.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use prost::Message as _;

use crate::{
    collector::CollectorConfig,
    families::{self, Families, Family, MetricKind, Sink},
    message::{KeyValue, nanoseconds},
    metric_message::{
        CUMULATIVE, Data, Gauge, Histogram, HistogramPoint, Metric, Number, NumberPoint, Request, Sum,
    },
    post::Poster,
};

/// A metric with its samples, which differ by label.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MetricFamily {
    /// Name of the metric.
    pub name: &'static str,
    /// Description of the metric, for people.
    pub description: &'static str,
    /// The kind of the metric: counter, gauge or histogram.
    pub kind: MetricKind,
    /// The samples, each with different labels.
    pub samples: Vec<Sample>,
}

/// A value of a metric, and its labels.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// The labels of the sample: names and values.
    pub labels: Vec<(String, String)>,
    /// The value of the sample.
    pub value: SampleValue,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SampleValue {
    /// An integer value of a counter or gauge.
    Integer(u64),
    /// A floating-point value of a counter or gauge.
    Real(f64),
    /// The buckets of a histogram.
    Histogram {
        /// Upper bounds (inclusive) of all buckets except the last.
        bounds: Vec<f64>,
        /// Count of each bucket, not cumulative. There is one count more than there are bounds.
        counts: Vec<u64>,
        /// The sum of all observations.
        sum: f64,
    },
}

impl MetricFamily {
    /// Creates a family without samples.
    #[must_use]
    pub fn new(name: &'static str, description: &'static str, kind: MetricKind) -> Self {
        Self {
            name,
            description,
            kind,
            samples: Vec::new(),
        }
    }

    /// Adds a sample to the family.
    pub fn add(&mut self, labels: Vec<(String, String)>, value: SampleValue) {
        self.samples.push(Sample { labels, value });
    }

    /// Returns the families that `write` writes.
    #[must_use]
    pub fn collect(write: impl FnOnce(&mut Families<'_>)) -> Vec<Self> {
        let mut collected = Collected::default();
        write(&mut Families::new(&mut collected));
        collected.0
    }
}

/// Families under construction.
#[derive(Default)]
struct Collected(Vec<MetricFamily>);

impl Collected {
    fn push(&mut self, labels: &families::Labels<'_>, value: SampleValue) {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        if let Some(family) = self.0.last_mut() {
            family.add(labels.collect(), value);
        }
    }
}

impl Sink for Collected {
    fn begin(&mut self, family: &Family) {
        self.0
            .push(MetricFamily::new(family.name, family.help, family.kind));
    }

    fn add(&mut self, labels: &families::Labels<'_>, value: families::Number) {
        let value = match value {
            families::Number::Integer(value) => SampleValue::Integer(value),
            families::Number::Real(value) => SampleValue::Real(value),
        };
        self.push(labels, value);
    }

    fn add_histogram(&mut self, labels: &families::Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64) {
        let (bounds, counts) = (bounds.to_vec(), counts.to_vec());
        self.push(labels, SampleValue::Histogram { bounds, counts, sum });
    }
}

/// Configuration of a metrics exporter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MetricsConfig {
    /// The collector that receives the metrics.
    pub collector: CollectorConfig,
    /// Interval between pushes.
    pub interval: Duration,
}

impl MetricsConfig {
    /// Creates a configuration with an interval of one minute.
    #[must_use]
    pub fn new(collector: CollectorConfig) -> Self {
        Self {
            collector,
            interval: Duration::from_secs(60),
        }
    }

    /// Returns the configuration with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Pushes metrics to a collector from a background thread. Values are cumulative, so a push contains what an
/// earlier, failed push lost. The program never waits for a push.
#[derive(Clone, Debug)]
pub struct MetricsExporter {
    messages: Sender<SyncSender<()>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    failed: AtomicU64,
}

/// Labels of a sample.
type Labels = [(String, String)];

/// Maximum number of samples per message: collectors accept a few MiB.
const MOST_SAMPLES: usize = 4096;

/// The first push happens at a random time within this interval, because many servers may start at once.
const FIRST: Duration = Duration::from_secs(5);

impl MetricsExporter {
    /// Starts the thread, which calls `collect` for the current metrics.
    ///
    /// # Errors
    /// When no thread can be created.
    pub fn start(
        config: MetricsConfig,
        collect: impl FnMut() -> Vec<MetricFamily> + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, wakes) = channel();
        let counts = Arc::new(Counts::default());
        let pusher = Pusher {
            poster: Poster::new(config.collector.endpoint.metrics_url(), &config.collector),
            starts: Starts::new(SystemTime::now()),
            collect,
            wait: config.collector.back_off,
            config,
            counts: counts.clone(),
            failing_since: None,
        };
        thread::Builder::new()
            .name("otlp-metrics".to_owned())
            .spawn(move || pusher.run(&wakes))?;
        Ok(Self { messages, counts })
    }

    /// Returns the number of pushes accepted by the collector.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Relaxed)
    }

    /// Returns the number of failed pushes.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.counts.failed.load(Relaxed)
    }

    /// Pushes the metrics a last time, and waits at most `patience` until they are sent. Call at exit.
    pub fn finish(&self, patience: Duration) {
        let (done, is_done) = sync_channel(0);
        if self.messages.send(done).is_ok() {
            let _ = is_done.recv_timeout(patience);
        }
    }
}

/// The state of the background thread, which pushes metrics.
struct Pusher<F> {
    poster: Poster,
    config: MetricsConfig,
    counts: Arc<Counts>,
    collect: F,
    starts: Starts,
    /// Back-off after the next failure.
    wait: Duration,
    /// When pushing began to fail. A failure is logged once, and so is the recovery.
    failing_since: Option<Instant>,
}

impl<F: FnMut() -> Vec<MetricFamily>> Pusher<F> {
    fn run(mut self, messages: &Receiver<SyncSender<()>>) {
        let mut wait = self.config.interval.min(FIRST).mul_f64(fastrand::f64());
        loop {
            let done = match messages.recv_timeout(wait) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let start = Instant::now();
            let wait_for_next = self.push();
            drop(done);
            wait = wait_for_next.saturating_sub(start.elapsed());
        }
    }

    /// Pushes all metrics once, and returns the time until the next push.
    fn push(&mut self) -> Duration {
        let families = (self.collect)();
        let mut rejected = None;
        for metrics in messages(families, &mut self.starts, SystemTime::now()) {
            let request = Request::new(
                &self.config.collector.resource,
                env!("CARGO_PKG_VERSION"),
                metrics,
            );
            match self.poster.post(&request.encode_to_vec()) {
                Ok(partial) => rejected = partial.or(rejected),
                Err(refusal) => {
                    self.counts.failed.fetch_add(1, Relaxed);
                    if self.failing_since.is_none() {
                        self.failing_since = Some(Instant::now());
                        let (endpoint, reason) =
                            (self.config.collector.endpoint.metrics_url(), &refusal.reason);
                        tracing::warn!(endpoint, reason, "the collector accepts no metrics");
                    }
                    if !refusal.is_passing {
                        return self.config.interval;
                    }
                    let wait = self.wait.min(self.config.interval);
                    self.wait = wait * 2;
                    return wait;
                }
            }
        }
        self.wait = self.config.collector.back_off;
        self.counts.sent.fetch_add(1, Relaxed);
        if let Some(since) = self.failing_since.take() {
            let seconds = since.elapsed().as_secs();
            tracing::info!(seconds, "the collector accepts metrics again");
        }
        if let Some(partial) = rejected {
            let (samples, reason) = (partial.rejected, partial.error_message);
            tracing::debug!(samples, reason, "the collector refused samples");
        }
        self.config.interval
    }
}

/// Tracks the start times of counters, which collectors require.
struct Starts {
    /// The start time of counters in the first collection.
    at: u64,
    /// The time of the previous collection, which becomes the start time of counters that are new or were
    /// reset since then.
    looked: Option<u64>,
    /// The last value and the start time of each counter.
    known: HashMap<u64, (f64, u64)>,
}

impl Starts {
    fn new(start: SystemTime) -> Self {
        Self {
            at: nanoseconds(start),
            looked: None,
            known: HashMap::new(),
        }
    }

    /// Returns the start time of a counter; a reloaded model restarts its counters.
    fn of(&self, key: u64, value: f64) -> u64 {
        match self.known.get(&key) {
            Some((last, start)) if value >= *last => *start,
            _ => self.looked.unwrap_or(self.at),
        }
    }
}

/// Converts metrics to OTLP messages of bounded size.
fn messages(families: Vec<MetricFamily>, starts: &mut Starts, now: SystemTime) -> Vec<Vec<Metric>> {
    let time = nanoseconds(now);
    let mut known = HashMap::new();
    let (mut done, mut current, mut count) = (Vec::new(), Vec::new(), 0);
    for family in families {
        let mut samples = family.samples.into_iter().peekable();
        while samples.peek().is_some() {
            let part: Vec<Sample> = samples.by_ref().take(MOST_SAMPLES - count).collect();
            count += part.len();
            let mut start_of = |labels: &Labels, value: f64| {
                let mut hasher = DefaultHasher::new();
                (family.name, labels).hash(&mut hasher);
                let key = hasher.finish();
                let start = starts.of(key, value);
                known.insert(key, (value, start));
                start
            };
            current.push(Metric {
                name: family.name.to_owned(),
                description: family.description.to_owned(),
                data: Some(data(family.kind, part, time, &mut start_of)),
            });
            if count == MOST_SAMPLES {
                done.push(std::mem::take(&mut current));
                count = 0;
            }
        }
    }
    if !current.is_empty() {
        done.push(current);
    }
    (starts.known, starts.looked) = (known, Some(time));
    done
}

/// Converts samples to data points. `start_of` returns a counter's start time, given its labels and current
/// value.
fn data(
    kind: MetricKind,
    samples: Vec<Sample>,
    time: u64,
    start_of: &mut dyn FnMut(&Labels, f64) -> u64,
) -> Data {
    match kind {
        MetricKind::Gauge => Data::Gauge(Gauge {
            points: samples
                .iter()
                .map(|sample| number_point(sample, time, |_, _| 0))
                .collect(),
        }),
        MetricKind::Counter => Data::Sum(Sum {
            points: samples
                .iter()
                .map(|sample| number_point(sample, time, &mut *start_of))
                .collect(),
            temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        MetricKind::Histogram => Data::Histogram(Histogram {
            points: samples
                .into_iter()
                .filter_map(|sample| histogram_point(sample, time, &mut *start_of))
                .collect(),
            temporality: CUMULATIVE,
        }),
    }
}

fn number_point(sample: &Sample, time: u64, start_of: impl FnOnce(&Labels, f64) -> u64) -> NumberPoint {
    let (real, value) = match sample.value {
        // Values that exceed the message's signed field are capped.
        SampleValue::Integer(value) => {
            let integer = i64::try_from(value).unwrap_or(i64::MAX);
            (value as f64, Number::Integer(integer))
        }
        SampleValue::Real(value) => (value, Number::Real(value)),
        SampleValue::Histogram { sum, .. } => (sum, Number::Real(sum)),
    };
    NumberPoint {
        start: start_of(&sample.labels, real),
        time,
        value: Some(value),
        attributes: attributes(&sample.labels),
    }
}

fn histogram_point(
    sample: Sample,
    time: u64,
    start_of: impl FnOnce(&Labels, f64) -> u64,
) -> Option<HistogramPoint> {
    let SampleValue::Histogram { bounds, counts, sum } = sample.value else {
        return None;
    };
    let count = counts.iter().sum();
    Some(HistogramPoint {
        start: start_of(&sample.labels, count as f64),
        time,
        count,
        sum: Some(sum),
        counts,
        bounds,
        attributes: attributes(&sample.labels),
    })
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels
        .iter()
        .map(|(name, value)| KeyValue::text(name, value))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn counter(value: u64, count: usize) -> MetricFamily {
        let mut family = MetricFamily::new("c_total", "How many.", MetricKind::Counter);
        for index in 0..count {
            family.add(
                vec![("model".to_owned(), index.to_string())],
                SampleValue::Integer(value),
            );
        }
        family
    }

    fn starts_of(messages: &[Vec<Metric>]) -> Vec<u64> {
        let all = messages.iter().flatten().flat_map(|metric| match &metric.data {
            Some(Data::Sum(sum)) => sum.points.iter().map(|point| point.start).collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        all.collect()
    }

    #[test]
    fn counters_that_begin_anew_say_when() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let mut starts = Starts::new(at(1));
        let mut look = |value, count, seconds| {
            let made = messages(vec![counter(value, count)], &mut starts, at(seconds));
            let starts = starts_of(&made).into_iter();
            starts.map(|start| start / 1_000_000_000).collect::<Vec<_>>()
        };
        assert_eq!(look(5, 1, 10), [1]);
        // One counter is added, then both are reset to 0.
        assert_eq!(look(7, 2, 20), [1, 10]);
        assert_eq!(look(0, 2, 30), [20, 20]);
        assert_eq!(look(3, 2, 40), [20, 20]);
        // Series that disappeared are forgotten.
        assert_eq!(look(9, 0, 50), [0; 0]);
        assert_eq!(look(9, 1, 60), [50]);
    }

    #[test]
    fn many_samples_are_several_messages() {
        let mut starts = Starts::new(UNIX_EPOCH);
        let families = vec![counter(1, 3000), counter(1, 6000), counter(1, 0)];
        let made = messages(families, &mut starts, UNIX_EPOCH);
        let counts: Vec<usize> = made
            .iter()
            .map(|message| starts_of(std::slice::from_ref(message)).len())
            .collect();
        assert_eq!(counts, [4096, 4096, 808]);
    }
}
