//! The access log: one line per request, written by a background thread, so that no request waits for a disk
//! or for the reader of standard error. Lines that do not fit into the queue are dropped and counted.

use std::{
    fmt::{self, Write as _},
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Write, stderr},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use oip_resources::Phase;
use serde::{Serialize, Serializer};

use super::finished::{Facts, FinishedExchange};

/// The value of a field in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Field<'a> {
    Text(&'a str),
    Number(u64),
    Address(SocketAddr),
}

impl FinishedExchange<'_> {
    fn json(&self) -> Vec<u8> {
        let Facts { notes, .. } = self.facts;
        let time = shown_time(self.facts);
        let phase = |phase| Some(Field::Number(microseconds(notes.time(phase)?)));
        let fields = [
            ("time", Some(Field::Text(&time))),
            ("peer", self.facts.peer.map(Field::Address)),
            ("identity", notes.identity().map(Field::Text)),
            ("transport", Some(Field::Text(self.transport.name()))),
            ("method", Some(Field::Text(self.facts.method.as_str()))),
            ("route", Some(Field::Text(self.route))),
            ("path", self.facts.path.as_deref().map(Field::Text)),
            ("model", notes.model().map(Field::Text)),
            ("version", notes.version().map(Field::Text)),
            ("code", Some(Field::Number(self.code.into()))),
            ("bytes_in", Some(Field::Number(self.bytes_in))),
            ("bytes_out", Some(Field::Number(self.bytes_out))),
            (
                "us",
                Some(Field::Number(microseconds(self.facts.start.elapsed()))),
            ),
            ("us_read", phase(Phase::Read)),
            ("us_decode", phase(Phase::Decode)),
            ("us_queue", phase(Phase::Queue)),
            ("us_run", phase(Phase::Run)),
            ("us_encode", phase(Phase::Encode)),
            ("request_id", self.facts.request_id.as_deref().map(Field::Text)),
            ("trace_id", self.facts.trace.as_deref().map(Field::Text)),
        ];
        let known = fields
            .iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let mut line = Vec::new();
        // Strings and numbers always serialize.
        let _ = serde_json::Serializer::new(&mut line).collect_map(known);
        line.push(b'\n');
        line
    }

    fn text(&self) -> Vec<u8> {
        let facts = self.facts;
        let mut line = shown_time(facts);
        let Self {
            transport,
            route,
            code,
            bytes_in,
            bytes_out,
            ..
        } = self;
        let (peer, method) = (facts.peer, &facts.method);
        let peer = peer.map_or("-".to_owned(), |peer| peer.to_string());
        // Writing to a string does not fail.
        let _ = write!(line, " {peer} {} {method} {route} {code}", transport.name());
        let _ = write!(
            line,
            " in={bytes_in} out={bytes_out} us={}",
            microseconds(facts.start.elapsed())
        );
        for (name, phase) in ["read", "decode", "queue", "run", "encode"]
            .into_iter()
            .zip(Phase::ALL)
        {
            if let Some(time) = facts.notes.time(phase) {
                let _ = write!(line, " {name}={}", microseconds(time));
            }
        }
        for (name, value) in [
            ("model", facts.notes.model()),
            ("version", facts.notes.version()),
            ("path", facts.path.as_deref()),
            ("identity", facts.notes.identity()),
            ("id", facts.request_id.as_deref()),
            ("trace", facts.trace.as_deref()),
        ] {
            if let Some(value) = value {
                let _ = write!(line, " {name}={}", QuotedValue(value));
            }
        }
        line.push('\n');
        line.into_bytes()
    }
}

fn shown_time(facts: &Facts) -> String {
    humantime::format_rfc3339_micros(facts.time).to_string()
}

/// A value that is quoted if it would be ambiguous.
struct QuotedValue<'a>(&'a str);

impl std::fmt::Display for QuotedValue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_plain = |character: char| character.is_alphanumeric() || "-_./:+@".contains(character);
        if !self.0.is_empty() && self.0.chars().all(is_plain) {
            return f.write_str(self.0);
        }
        write!(f, "{:?}", self.0)
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How lines of the access log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessLogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes the access log. Clones share the queue.
#[derive(Clone)]
pub struct AccessLog {
    queue: SyncSender<Message>,
    format: AccessLogFormat,
    /// The file; `None` for standard error.
    file: Option<Arc<Path>>,
    dropped: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    /// The file was moved: open a new file at its path.
    Reopen(SyncSender<io::Result<()>>),
    /// Writes everything queued before this message, then drops the sender, which wakes the caller.
    Flush(SyncSender<()>),
}

/// Maximum number of queued lines, which take several megabytes.
const CAPACITY: usize = 16 << 10;

/// Maximum number of bytes per write.
const BLOCK: usize = 64 << 10;

/// How long a caller waits for a thread that is blocked by a disk.
const PATIENCE: Duration = Duration::from_secs(5);

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AccessLog");
        shown.field("format", &self.format).field("file", &self.file);
        shown.finish_non_exhaustive()
    }
}

impl AccessLog {
    /// Starts appending to a file, or to standard error if `file` is `None`.
    ///
    /// # Errors
    /// When the file cannot be opened, or no thread can be created.
    pub fn start(format: AccessLogFormat, file: Option<PathBuf>) -> io::Result<Self> {
        let path = file.as_deref().map(Arc::from);
        let out = Out::open(file)?;
        let (queue, messages) = sync_channel(CAPACITY);
        let dropped = Arc::new(AtomicU64::new(0));
        let writing = {
            let dropped = dropped.clone();
            move || write_all(&messages, out, &dropped)
        };
        thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(writing)?;
        Ok(Self {
            queue,
            format,
            file: path,
            dropped,
        })
    }

    /// Returns the file that lines are appended to; `None` for standard error.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Queues a line. If the queue is full, drops the line.
    pub(super) fn write(&self, request: &FinishedExchange<'_>) {
        let line = match self.format {
            AccessLogFormat::Json => request.json(),
            AccessLogFormat::Text => request.text(),
        };
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of lines that were dropped or could not be written.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Reopens the file, for log rotation. On failure, the old file stays in use.
    ///
    /// # Errors
    /// When the file cannot be opened, or the disk blocks the thread for seconds.
    pub fn reopen(&self) -> io::Result<()> {
        let (done, is_done) = sync_channel(1);
        let held_up = || io::Error::new(ErrorKind::TimedOut, "the disk does not keep up");
        if !self.send(Message::Reopen(done), PATIENCE) {
            return Err(held_up());
        }
        is_done.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(held_up()))
    }

    /// Waits until all lines queued so far are written, for at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let (done, is_done) = sync_channel(0);
        if self.send(Message::Flush(done), patience) {
            let _ = is_done.recv_timeout(patience);
        }
    }

    /// Queues a command, and waits for space in the queue. Returns false on timeout.
    fn send(&self, mut message: Message, patience: Duration) -> bool {
        let start = Instant::now();
        while let Err(unsent) = self.queue.try_send(message) {
            match unsent {
                TrySendError::Full(unsent) if start.elapsed() < patience => message = unsent,
                _ => return false,
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// Runs the thread's loop, which writes lines in blocks.
fn write_all(messages: &Receiver<Message>, mut out: Out, dropped: &AtomicU64) {
    /// How long lines are collected: waking up for each line would cost every request time.
    const GATHER: Duration = Duration::from_millis(5);
    let mut block = Block::default();
    while let Ok(first) = messages.recv() {
        for message in std::iter::once(first).chain(messages.try_iter()) {
            match message {
                Message::Line(line) => {
                    block.add(&line);
                    if block.bytes.len() >= BLOCK {
                        block.write(&mut out, dropped);
                    }
                }
                Message::Reopen(done) => {
                    block.write(&mut out, dropped);
                    let _ = done.send(out.reopen());
                }
                Message::Flush(done) => {
                    block.write(&mut out, dropped);
                    drop(done);
                }
            }
        }
        block.write(&mut out, dropped);
        thread::sleep(GATHER);
    }
}

/// Lines that are collected for one write.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    lines: u64,
    /// Whether the last write failed. A failure is logged once.
    is_failing: bool,
}

impl Block {
    fn add(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.lines += 1;
    }

    fn write(&mut self, out: &mut Out, dropped: &AtomicU64) {
        if self.lines == 0 {
            return;
        }
        let written = out.write_all(&self.bytes);
        if let Err(error) = &written {
            dropped.fetch_add(self.lines, Relaxed);
            if !self.is_failing {
                tracing::warn!(%error, "the access log cannot be written");
            }
        }
        self.is_failing = written.is_err();
        self.bytes.clear();
        self.lines = 0;
    }
}

/// The destination of the lines.
enum Out {
    Stderr,
    File { file: File, path: PathBuf },
}

impl Out {
    fn open(path: Option<PathBuf>) -> io::Result<Self> {
        Ok(match path {
            None => Self::Stderr,
            Some(path) => Self::File {
                file: open(&path)?,
                path,
            },
        })
    }

    fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::Stderr => {}
            Self::File { file, path } => *file = open(path)?,
        }
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => stderr().write_all(bytes),
            Self::File { file, .. } => file.write_all(bytes),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::{fs, time::SystemTime};

    use http::Method;
    use oip_resources::RequestNotes;

    use super::*;
    use crate::requests::Transport;

    fn facts(notes: RequestNotes) -> Facts {
        Facts {
            time: SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_123),
            start: Instant::now(),
            peer: Some("10.0.0.1:5000".parse().unwrap()),
            method: Method::POST,
            path: None,
            request_id: Some("a b\n".to_owned()),
            trace: None,
            notes: Arc::new(notes),
        }
    }

    fn finished(facts: &Facts) -> FinishedExchange<'_> {
        FinishedExchange {
            transport: Transport::Http,
            route: "/v2/models/{model}/infer",
            code: 200,
            bytes_in: 10,
            bytes_out: 20,
            facts,
        }
    }

    #[test]
    fn lines_have_all_that_is_known() {
        let notes = RequestNotes::default();
        notes.set_model("digits");
        notes.set_version("3");
        notes.add(Phase::Queue, Duration::ZERO);
        notes.add(Phase::Run, Duration::from_micros(1000));
        let facts = facts(notes);
        let text = String::from_utf8(finished(&facts).text()).unwrap();
        let (before, after) = text.split_once(" us=").unwrap();
        let (us, after) = after.split_once(' ').unwrap();
        assert!(us.parse::<u64>().is_ok(), "{text}");
        assert_eq!(
            format!("{before} {after}"),
            "2023-11-14T22:13:20.000123Z 10.0.0.1:5000 http POST /v2/models/{model}/infer 200 in=10 out=20 \
             queue=0 run=1000 model=digits version=3 id=\"a b\\n\"\n"
        );
        let json = finished(&facts).json();
        let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert!(json["us"].take().is_u64(), "{json}");
        let expected = serde_json::json!({
            "time": "2023-11-14T22:13:20.000123Z", "peer": "10.0.0.1:5000", "transport": "http", "method": "POST",
            "route": "/v2/models/{model}/infer", "model": "digits", "version": "3", "code": 200, "bytes_in": 10,
            "bytes_out": 20, "us": null, "us_queue": 0, "us_run": 1000, "request_id": "a b\n",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn files_that_were_moved_away_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let log = AccessLog::start(AccessLogFormat::Text, Some(path.clone())).unwrap();
        let facts = facts(RequestNotes::default());
        log.write(&finished(&facts));
        log.flush(PATIENCE);
        let moved = folder.path().join("access.log.1");
        fs::rename(&path, &moved).unwrap();
        log.reopen().unwrap();
        for _ in 0..2 {
            log.write(&finished(&facts));
        }
        log.flush(PATIENCE);
        let lines = |path| fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(&moved), lines(&path)), (1, 2));
        // With a directory at the file's path, lines continue in the old file.
        fs::rename(&path, folder.path().join("access.log.2")).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(log.reopen().is_err());
        log.write(&finished(&facts));
        log.flush(PATIENCE);
        assert_eq!(lines(&folder.path().join("access.log.2")), 3);
        assert_eq!(log.dropped(), 0);
        assert!(AccessLog::start(AccessLogFormat::Json, Some(path)).is_err());
    }

    /// Checks that lines count as dropped if the disk is full or the queue overflows, and that queueing never
    /// blocks.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_cannot_be_written_is_counted() {
        let full = Some(PathBuf::from("/dev/full"));
        let log = AccessLog::start(AccessLogFormat::Json, full).unwrap();
        let facts = facts(RequestNotes::default());
        for _ in 0..2 * CAPACITY {
            log.write(&finished(&facts));
        }
        log.flush(PATIENCE);
        assert_eq!(log.dropped(), 2 * CAPACITY as u64);
    }
}
