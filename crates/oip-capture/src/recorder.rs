//! Writes exchanges to files from a background thread, whose queue is bounded in bytes.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use oip_types::{InferRequest, InferResponse, TensorValue};

use crate::{
    error::CaptureError,
    file::{answer_file, request_file},
    index::{ANSWER, INDEX, Line, PART, REQUEST},
    leftovers,
};

/// Configuration of a recorder: which requests to record, and limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecorderConfig {
    /// The directory to write to. The directory is created if needed, with permissions for its owner only.
    pub folder: PathBuf,
    /// The fraction of requests to record, from 0 to 1.
    pub rate: f64,
    /// Name patterns of models to record, with the wildcard `*`. An empty list means all models.
    pub models: Vec<String>,
    /// Maximum size of the directory in bytes, including earlier contents.
    pub limit: u64,
    /// Maximum size of the tensors that wait for the disk, in bytes.
    pub waiting: u64,
}

impl RecorderConfig {
    /// Creates a configuration that records everything, up to one gibibyte.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            rate: 1.0,
            models: Vec::new(),
            limit: 1 << 30,
            waiting: 64 << 20,
        }
    }

    /// Returns the configuration with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Records exchanges from a background thread. Exchanges that exceed a limit are counted and dropped.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: Sender<Message>,
    shared: Arc<SharedState>,
}

#[derive(Debug)]
struct SharedState {
    rate: f64,
    models: Vec<String>,
    most_waiting: u64,
    waiting: AtomicU64,
    recorded: AtomicU64,
    dropped: AtomicU64,
    /// Whether the directory has reached its maximum size.
    is_full: AtomicBool,
}

enum Message {
    Exchange(Box<Exchange>),
    /// Write everything queued before this message, then drop the sender.
    Flush(SyncSender<()>),
}

struct Exchange {
    time: SystemTime,
    request: InferRequest,
    response: InferResponse,
    /// Size of the exchange's tensors in bytes.
    tensors: u64,
    /// The size of the exchange, as counted toward the limit of the queue.
    bytes: u64,
}

impl Recorder {
    /// Opens the directory and starts the thread.
    ///
    /// # Errors
    /// When the directory is not writable or no thread can be created.
    pub fn start(config: RecorderConfig) -> Result<Self, CaptureError> {
        let writer = Writer::open(&config)?;
        let shared = Arc::new(SharedState {
            rate: config.rate,
            models: config.models,
            most_waiting: config.waiting,
            waiting: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        });
        // The channel is unbounded, because the limit is in bytes, and each exchange counts for more bytes
        // than it takes in the channel.
        let (queue, messages) = channel();
        let working = {
            let shared = shared.clone();
            move || writer.run(&messages, &shared)
        };
        thread::Builder::new()
            .name("capture".to_owned())
            .spawn(working)
            .map_err(CaptureError::io(config.folder))?;
        Ok(Self { queue, shared })
    }

    /// Returns whether to record a request to `model`: its name is configured, sampling selects the request,
    /// and the directory is not full.
    #[must_use]
    pub fn wants(&self, model: &str) -> bool {
        let SharedState {
            rate,
            models,
            is_full,
            ..
        } = &*self.shared;
        let is_listed = || models.is_empty() || models.iter().any(|pattern| fits(pattern, model));
        !is_full.load(Relaxed) && is_listed() && fastrand::f64() < *rate
    }

    /// Queues an exchange, or drops and counts it. Never blocks.
    pub fn record(&self, request: InferRequest, response: InferResponse) {
        let length = |value: &TensorValue| value.raw().len() as u64;
        let inputs: u64 = request.inputs.iter().map(|input| length(&input.value)).sum();
        let outputs: u64 = response.outputs.iter().map(|output| length(&output.value)).sum();
        let bytes = 4096 + request.overhead_bytes() as u64 + inputs + outputs;
        let shared = &self.shared;
        if shared.waiting.fetch_add(bytes, Relaxed) + bytes > shared.most_waiting {
            shared.waiting.fetch_sub(bytes, Relaxed);
            shared.dropped.fetch_add(1, Relaxed);
            return;
        }
        let exchange = Box::new(Exchange {
            time: SystemTime::now(),
            request,
            response,
            tensors: inputs + outputs,
            bytes,
        });
        if self.queue.send(Message::Exchange(exchange)).is_err() {
            shared.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of exchanges written.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.shared.recorded.load(Relaxed)
    }

    /// Returns the number of exchanges that were dropped or could not be written.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Relaxed)
    }

    /// Waits until all exchanges so far are written, for at most `patience`.
    pub fn finish(&self, patience: Duration) {
        let (done, is_done) = sync_channel(0);
        if self.queue.send(Message::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(patience);
        }
    }
}

/// Matches a name against a pattern with the wildcard `*`.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The outcome of recording an exchange.
enum WriteOutcome {
    Recorded,
    /// The exchange, of this size, is too large for the remaining space; smaller exchanges may fit.
    TooLarge(u64),
    /// The directory has reached its maximum size.
    Full,
}

/// Smallest size that an exchange can have, in bytes.
const SMALLEST: u64 = 512;

/// The state of the background thread, which writes files.
struct Writer {
    folder: PathBuf,
    /// The id of this run; file names begin with it.
    run: String,
    index: File,
    index_path: PathBuf,
    used: u64,
    limit: u64,
    /// Number of exchanges of this run, and their total size.
    count: u64,
    bytes: u64,
    /// Whether an exchange was too large, which is logged once.
    has_skipped: bool,
    /// Whether the last write failed, which is logged once.
    is_failing: bool,
}

impl Writer {
    fn open(config: &RecorderConfig) -> Result<Self, CaptureError> {
        let folder = config.folder.clone();
        private(&mut DirBuilder::new())
            .create(&folder)
            .map_err(CaptureError::io(&folder))?;
        let used = leftovers::clear(&folder).map_err(CaptureError::io(&folder))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut start = since.as_millis();
        let (run, index_path, index) = loop {
            let run = format!("{start:013}-{}", process::id());
            let index_path = folder.join(format!("{}{run}{}", INDEX.0, INDEX.1));
            let mut options = OpenOptions::new();
            match owners(options.append(true).create_new(true)).open(&index_path) {
                Ok(index) => break (run, index_path, index),
                // Another recorder of this process started in the same millisecond.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => start += 1,
                Err(error) => return Err(CaptureError::io(&index_path)(error)),
            }
        };
        // The lock marks this run as alive. If files cannot be locked, leftovers are never removed. On
        // systems other than Unix, a lock would exclude readers.
        #[cfg(unix)]
        let _ = index.lock();
        Ok(Self {
            folder,
            run,
            index,
            index_path,
            used,
            limit: config.limit,
            count: 0,
            bytes: 0,
            is_failing: false,
            has_skipped: false,
        })
    }

    fn run(mut self, messages: &Receiver<Message>, shared: &SharedState) {
        while let Ok(message) = messages.recv() {
            let exchange = match message {
                Message::Exchange(exchange) => exchange,
                Message::Flush(done) => {
                    drop(done);
                    continue;
                }
            };
            let written = match shared.is_full.load(Relaxed) {
                true => Ok(WriteOutcome::Full),
                false => self.write(&exchange),
            };
            let bytes = exchange.bytes;
            drop(exchange);
            shared.waiting.fetch_sub(bytes, Relaxed);
            let count = match &written {
                Ok(WriteOutcome::Recorded) => &shared.recorded,
                Ok(WriteOutcome::TooLarge(_) | WriteOutcome::Full) | Err(_) => &shared.dropped,
            };
            count.fetch_add(1, Relaxed);
            match &written {
                Ok(WriteOutcome::Full) if !shared.is_full.swap(true, Relaxed) => {
                    let (folder, limit) = (self.folder.display(), self.limit);
                    tracing::warn!(%folder, limit, "captured requests have reached their limit: no more are recorded");
                }
                Ok(WriteOutcome::TooLarge(bytes)) if !self.has_skipped => {
                    self.has_skipped = true;
                    let left = self.limit - self.used.min(self.limit);
                    tracing::warn!(
                        bytes,
                        left,
                        "a request and its response are larger than the rest of the limit: not recorded; \
                         smaller ones still are"
                    );
                }
                Err(error) if !self.is_failing => {
                    tracing::warn!(%error, "a captured request cannot be written");
                }
                _ => {}
            }
            self.is_failing = written.is_err();
        }
    }

    /// Returns the outcome for an exchange of `bytes` bytes that does not fit; `None` if it fits. The outcome
    /// is [`WriteOutcome::Full`] if the exchange has a typical size, since later exchanges will not fit
    /// either.
    fn beyond(&self, bytes: u64) -> Option<WriteOutcome> {
        let left = self.limit.saturating_sub(self.used);
        if bytes <= left {
            return None;
        }
        let is_usual = self.count > 0 && bytes / 2 <= self.bytes / self.count;
        Some(match is_usual || left < SMALLEST {
            true => WriteOutcome::Full,
            false => WriteOutcome::TooLarge(bytes),
        })
    }

    /// Writes an exchange. The exchange counts as recorded once both files and its index line are on disk.
    fn write(&mut self, exchange: &Exchange) -> Result<WriteOutcome, CaptureError> {
        // The limit is checked first, so that tensors that will not fit are not encoded.
        if let Some(beyond) = self.beyond(exchange.tensors) {
            return Ok(beyond);
        }
        let name = format!("{}-{:08}", self.run, self.count + 1);
        let encoded = |suffix: &str, file: Result<Vec<u8>, fmt_core::Error>| {
            let path = self.folder.join(format!("{name}{suffix}"));
            match file {
                Ok(bytes) => Ok((path, bytes)),
                Err(source) => Err(CaptureError::Tensors { path, source }),
            }
        };
        let (request_path, request) = encoded(REQUEST, request_file(&exchange.request))?;
        let (answer_path, answer) = encoded(ANSWER, answer_file(&exchange.response))?;
        let bytes = (request.len() + answer.len()) as u64;
        let line = Line {
            name,
            time: humantime::format_rfc3339_millis(exchange.time).to_string(),
            model: exchange.request.model().name().to_owned(),
            version: exchange.response.model_version.clone(),
            bytes,
        };
        let mut text = serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
        let bytes = bytes + text.len() as u64;
        if let Some(beyond) = self.beyond(bytes) {
            return Ok(beyond);
        }
        let published = self
            .publish(&request_path, &request)
            .and_then(|()| self.publish(&answer_path, &answer))
            .and_then(|()| self.sync_folder())
            .and_then(|()| self.append(&text));
        if let Err(error) = published {
            // Remove files that the index does not list.
            for path in [&request_path, &answer_path] {
                let _ = fs::remove_file(path);
            }
            return Err(error);
        }
        self.count += 1;
        self.bytes += bytes;
        self.used += bytes;
        Ok(WriteOutcome::Recorded)
    }

    /// Appends a line to the index atomically.
    fn append(&mut self, line: &str) -> Result<(), CaptureError> {
        // The line is written with a single call at the end of the file, so a crash leaves no line or a
        // partial one, which readers ignore.
        let before = self.index.metadata().map(|metadata| metadata.len());
        let written = self
            .index
            .write_all(line.as_bytes())
            .and_then(|()| self.index.sync_data());
        if written.is_err()
            && let Ok(length) = before
        {
            // A partial line must not precede the next one.
            let _ = self.index.set_len(length);
        }
        written.map_err(CaptureError::io(&self.index_path))
    }

    /// Syncs the directory, so that file names survive a power failure.
    fn sync_folder(&self) -> Result<(), CaptureError> {
        #[cfg(unix)]
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(CaptureError::io(&self.folder))?;
        Ok(())
    }

    /// Writes a file under a temporary name first, so that a file with its final name is complete.
    fn publish(&self, path: &Path, bytes: &[u8]) -> Result<(), CaptureError> {
        // The file is readable only by its owner, and is removed when writing fails.
        let written = tempfile::Builder::new()
            .prefix(&format!("{PART}{}-", self.run))
            .tempfile_in(&self.folder)
            .and_then(|mut part| {
                part.write_all(bytes)?;
                part.as_file().sync_all()?;
                part.persist(path).map_err(|error| error.error)
            });
        written.map(drop).map_err(CaptureError::io(path))
    }
}

fn private(builder: &mut DirBuilder) -> &mut DirBuilder {
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(builder, 0o700);
    builder.recursive(true)
}

fn owners(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_names() {
        for (pattern, name, expected) in [
            ("digits", "digits", true),
            ("digits", "digits2", false),
            ("*", "", true),
            ("iris-*", "iris-3", true),
            ("iris-*", "my-iris-3", false),
            ("*-v*-*", "a-v1-b", true),
            ("*-v*-*", "a-v1", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
