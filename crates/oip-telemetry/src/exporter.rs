//! Exports spans to a collector: a bounded queue and a sending thread.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use prost::Message as _;

use crate::{
    collector::CollectorConfig,
    message::Request,
    post::{Poster, Refusal},
    span::Span,
};

/// Configuration of a trace exporter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExporterConfig {
    /// The collector that receives the spans.
    pub collector: CollectorConfig,
    /// Maximum number of requests whose spans may be queued.
    pub capacity: usize,
}

impl ExporterConfig {
    /// Creates a configuration with a queue of 2,048 requests.
    #[must_use]
    pub fn new(collector: CollectorConfig) -> Self {
        Self {
            collector,
            capacity: 2048,
        }
    }

    /// Returns the configuration with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Sends spans to a collector from a background thread. Counts spans dropped because the queue is full or the
/// collector rejects them.
#[derive(Clone, Debug)]
pub struct Exporter {
    queue: SyncSender<Message>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// Number of spans in the queue.
    waiting: AtomicU64,
    /// Whether the program is exiting, which ends retries.
    is_ending: AtomicBool,
}

enum Message {
    Spans(Vec<Span>),
    /// Send everything queued before this message, then drop the sender, which wakes the caller.
    Flush(SyncSender<()>),
}

/// Maximum number of spans per message, and how long they are collected.
const BATCH: usize = 512;
const GATHER: Duration = Duration::from_secs(1);

/// Maximum number of spans in the queue: a stream may produce hundreds of spans, other requests about ten.
const MOST_WAITING: u64 = 16 << 10;

/// Maximum back-off, and maximum number of attempts for the same spans.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const TRIES: u32 = 5;

impl Exporter {
    /// Starts the thread, which connects to the collector when the first spans are sent.
    ///
    /// # Errors
    /// When no thread can be created.
    pub fn start(config: ExporterConfig) -> io::Result<Self> {
        let (queue, messages) = sync_channel(config.capacity.max(1));
        let counts = Arc::new(Counts::default());
        let sender = Sender {
            poster: Poster::new(config.collector.endpoint.url(), &config.collector),
            config,
            counts: counts.clone(),
            failing_since: None,
        };
        thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || sender.run(&messages))?;
        Ok(Self { queue, counts })
    }

    /// Queues the spans of a request, or drops and counts them. Never blocks.
    pub fn export(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let waiting = self.counts.waiting.fetch_add(count, Relaxed) + count;
        if waiting > MOST_WAITING || self.queue.try_send(Message::Spans(spans)).is_err() {
            self.counts.waiting.fetch_sub(count, Relaxed);
            self.counts.dropped.fetch_add(count, Relaxed);
        }
    }

    /// Returns the number of spans accepted by the collector.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Relaxed)
    }

    /// Returns the number of spans dropped or rejected.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Relaxed)
    }

    /// Sends the queued spans with a single attempt per message, and waits at most `patience` until they are
    /// sent. Call at exit.
    pub fn finish(&self, patience: Duration) {
        self.counts.is_ending.store(true, Relaxed);
        let start = Instant::now();
        let (done, is_done) = sync_channel(0);
        let mut message = Message::Flush(done);
        while let Err(unsent) = self.queue.try_send(message) {
            match unsent {
                TrySendError::Full(unsent) if start.elapsed() < patience => message = unsent,
                _ => return,
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = is_done.recv_timeout(patience.saturating_sub(start.elapsed()));
    }
}

/// The state of the background thread, which sends spans.
struct Sender {
    poster: Poster,
    config: ExporterConfig,
    counts: Arc<Counts>,
    /// When sending began to fail. A failure is logged once, and so is the recovery.
    failing_since: Option<Instant>,
}

impl Sender {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut spans = Vec::new();
        while let Ok(first) = messages.recv() {
            let (mut next, end) = (Some(first), Instant::now() + GATHER);
            while let Some(message) = next.take() {
                match message {
                    Message::Spans(more) => {
                        self.counts.waiting.fetch_sub(more.len() as u64, Relaxed);
                        spans.extend(more);
                    }
                    Message::Flush(_done) => {
                        self.send(&mut spans);
                        break;
                    }
                }
                let left = end.saturating_duration_since(Instant::now());
                if spans.len() >= BATCH || left.is_zero() {
                    break;
                }
                next = messages.recv_timeout(left).ok();
            }
            self.send(&mut spans);
        }
    }

    /// Sends spans, with retries where useful, and clears them.
    fn send(&mut self, spans: &mut Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let count = spans.len() as u64;
        let message =
            Request::new(&self.config.collector.resource, env!("CARGO_PKG_VERSION"), spans).encode_to_vec();
        spans.clear();
        let mut wait = self.config.collector.back_off;
        for attempt in 1.. {
            match self.post(&message) {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    self.counts.sent.fetch_add(count - rejected, Relaxed);
                    self.counts.dropped.fetch_add(rejected, Relaxed);
                    if let Some(since) = self.failing_since.take() {
                        let (seconds, dropped) =
                            (since.elapsed().as_secs(), self.counts.dropped.load(Relaxed));
                        tracing::info!(seconds, dropped, "the collector accepts traces again");
                    }
                    return;
                }
                Err(Refusal { reason, is_passing }) => {
                    if self.failing_since.is_none() {
                        self.failing_since = Some(Instant::now());
                        let endpoint = self.config.collector.endpoint.url();
                        tracing::warn!(
                            endpoint,
                            reason,
                            "the collector accepts no traces; requests continue without them"
                        );
                    }
                    if !is_passing || attempt == TRIES || self.counts.is_ending.load(Relaxed) {
                        self.counts.dropped.fetch_add(count, Relaxed);
                        return;
                    }
                    self.pause(wait);
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }

    /// Waits, unless the program is exiting.
    fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.counts.is_ending.load(Relaxed) {
            thread::sleep(time.min(Duration::from_millis(20)));
        }
    }

    /// Sends a message, and returns the number of its spans that were rejected.
    fn post(&self, message: &[u8]) -> Result<u64, Refusal> {
        let Some(partial) = self.poster.post(message)? else {
            return Ok(0);
        };
        tracing::debug!(
            spans = partial.rejected,
            reason = partial.error_message,
            "the collector refused spans"
        );
        Ok(partial.rejected.unsigned_abs())
    }
}
