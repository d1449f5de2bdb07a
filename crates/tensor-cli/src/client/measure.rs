//! Sends requests in an open or closed loop, and measures latency.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use oip_client::{ClientError, InferenceClient};
use oip_types::InferRequest;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use crate::{
    client::{chart::micros, unless_interrupted},
    progress::{self, ProgressLine},
};

/// The schedule of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Open-loop rate in requests per second; without it, each client sends the next request after a response
    /// (closed loop).
    pub(super) rate: Option<f64>,
    pub(super) warm_up: Duration,
    pub(super) end: End,
}

/// When the measurement ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// The measurement ends this long after the warm-up.
    At(Duration),
    /// The measurement ends after this many requests.
    After(u64),
}

/// The results.
#[derive(Debug)]
pub(super) struct Measurement {
    /// Latencies in nanoseconds.
    pub(super) latency: Histogram<u64>,
    /// Number of failed requests by kind of error.
    pub(super) errors: BTreeMap<String, u64>,
    /// The first failure, in full.
    pub(super) first_error: Option<String>,
    /// Requests that were due but not sent when the measurement ended.
    pub(super) unsent: u64,
    /// The time from the end of the warm-up to the last response.
    pub(super) elapsed: Duration,
    /// Whether the user interrupted the measurement.
    pub(super) is_interrupted: bool,
}

/// The latencies and errors that all clients have recorded.
struct Tally {
    latency: Histogram<u64>,
    errors: BTreeMap<String, u64>,
    first_error: Option<String>,
    last_answer: Instant,
}

struct Run {
    load: Load,
    requests: Arc<[InferRequest]>,
    /// When the measurement begins.
    begin: Instant,
    /// Number of measured requests that have been started.
    begun: AtomicU64,
    is_over: AtomicBool,
    /// Requests that were due but not sent when the measurement ended.
    unsent: AtomicU64,
    tally: Mutex<Tally>,
    /// Due times of open-loop requests.
    due: AsyncMutex<mpsc::UnboundedReceiver<Instant>>,
}

/// Runs all clients until the measurement ends or the user interrupts.
pub(super) async fn run(
    clients: Vec<Box<dyn InferenceClient>>,
    requests: Arc<[InferRequest]>,
    load: Load,
    live: Option<ProgressLine>,
) -> Measurement {
    // The histogram covers 1 us to 1 h with three significant digits.
    let latency = Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3).expect("the bounds are sound");
    let begin = Instant::now() + load.warm_up;
    let (clock, due) = mpsc::unbounded_channel();
    let run = Arc::new(Run {
        load,
        requests,
        begin,
        begun: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        unsent: AtomicU64::new(0),
        tally: Mutex::new(Tally {
            latency,
            errors: BTreeMap::new(),
            first_error: None,
            last_answer: begin,
        }),
        due: AsyncMutex::new(due),
    });
    let ticking = load.rate.map(|rate| {
        let run = run.clone();
        thread::spawn(move || run.tick(rate, &clock))
    });
    let working: Vec<_> = clients
        .into_iter()
        .map(|client| tokio::spawn(run.clone().work(client)))
        .collect();
    let watching = tokio::spawn(run.clone().watch(live));
    for worker in working {
        // Workers end on their own. If one panics, the results that it has recorded still count.
        let _ = worker.await;
    }
    run.is_over.store(true, Ordering::SeqCst);
    let _ = watching.await;
    if let Some(ticking) = ticking {
        let _ = ticking.join();
    }
    let mut due = run.due.lock().await;
    let mut unsent = run.unsent.load(Ordering::SeqCst);
    while due.try_recv().is_ok() {
        unsent += 1;
    }
    let tally = run.tally();
    Measurement {
        latency: tally.latency.clone(),
        errors: tally.errors.clone(),
        first_error: tally.first_error.clone(),
        unsent,
        elapsed: tally.last_answer.saturating_duration_since(begin),
        is_interrupted: progress::is_interrupted(),
    }
}

impl Run {
    /// Generates due times on a separate thread: the runtime's timers have only millisecond resolution.
    fn tick(&self, rate: f64, clock: &mpsc::UnboundedSender<Instant>) {
        let start = self.begin - self.load.warm_up;
        let mut measured = 0;
        for number in 0u64.. {
            let due = start + Duration::from_secs_f64(number as f64 / rate);
            match self.load.end {
                End::At(duration) if due >= self.begin + duration => return,
                End::After(count) if measured >= count => return,
                _ => measured += u64::from(due >= self.begin),
            }
            // Sleeps in short steps, to notice when the measurement is over.
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if self.is_over.load(Ordering::SeqCst) {
                    return;
                }
                if left.is_zero() {
                    break;
                }
                thread::sleep(left.min(Duration::from_millis(20)));
            }
            if clock.send(due).is_err() {
                return;
            }
        }
    }

    /// Shows progress, and ends the measurement when its time is up or the user interrupts.
    async fn watch(self: Arc<Self>, live: Option<ProgressLine>) {
        const TICK: Duration = Duration::from_millis(20);
        /// Ticks between two progress lines.
        const LINE: u64 = 25;
        let mut before = (Instant::now(), 0);
        for tick in 0u64.. {
            if let Some(live) = live.as_ref().filter(|_| tick.is_multiple_of(LINE)) {
                let (text, now) = self.line(before);
                live.say(text);
                before = now;
            }
            let is_late =
                matches!(self.load.end, End::At(duration) if Instant::now() >= self.begin + duration);
            if self.is_over.load(Ordering::SeqCst) || is_late || progress::is_interrupted() {
                self.is_over.store(true, Ordering::SeqCst);
                return;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Formats a progress line for the time since the last one. Returns the line with the current time and
    /// number of responses.
    fn line(&self, (then, answers): (Instant, u64)) -> (String, (Instant, u64)) {
        let now = Instant::now();
        if now < self.begin {
            return ("warming up".to_owned(), (self.begin, 0));
        }
        let tally = self.tally();
        let count = tally.latency.len();
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(1e-3);
        let rate = count.saturating_sub(answers) as f64 / seconds;
        let quantile = |quantile| micros(tally.latency.value_at_quantile(quantile) as f64 / 1e3);
        let errors: u64 = tally.errors.values().sum();
        let mut text = format!(
            "{count} responses, {rate:.0}/s, p50 {}, p99 {}",
            quantile(0.5),
            quantile(0.99)
        );
        if errors > 0 {
            text += &format!(", {errors} errors");
        }
        (text, (now, count))
    }

    /// Runs one client: sends one request at a time until the measurement is over.
    async fn work(self: Arc<Self>, client: Box<dyn InferenceClient>) {
        let mut number = 0;
        loop {
            let Some(due) = self.next().await else { return };
            let is_measured = due >= self.begin;
            if is_measured
                && let End::After(count) = self.load.end
                && self.begun.fetch_add(1, Ordering::SeqCst) >= count
            {
                return;
            }
            let request = &self.requests[number % self.requests.len()];
            number += 1;
            let call = client.infer(request);
            let answer = match unless_interrupted(call).await {
                Ok(answer) => answer.map(drop),
                // Requests that have no response when the measurement ends are not counted.
                Err(_) => return,
            };
            if is_measured {
                self.note(due.elapsed(), answer);
            }
        }
    }

    /// Returns when the next request is due: immediately in a closed loop, on schedule in an open loop.
    /// Returns `None` at the end.
    async fn next(&self) -> Option<Instant> {
        if self.is_over.load(Ordering::SeqCst) {
            return None;
        }
        if self.load.rate.is_none() {
            return Some(Instant::now());
        }
        let waiting = async { self.due.lock().await.recv().await };
        let due = unless_interrupted(waiting).await.ok()??;
        if self.is_over.load(Ordering::SeqCst) {
            self.unsent.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        Some(due)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock()
    }

    fn note(&self, latency: Duration, answer: Result<(), ClientError>) {
        let mut tally = self.tally();
        tally.last_answer = Instant::now();
        match answer {
            Ok(()) => tally
                .latency
                .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX)),
            Err(error) => {
                *tally.errors.entry(kind(&error)).or_default() += 1;
                tally.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// Returns a short name for the kind of failure.
fn kind(error: &ClientError) -> String {
    match error.status() {
        Some(status) => format!("{} ({status})", error.kind()),
        None => error.kind().to_string(),
    }
}
