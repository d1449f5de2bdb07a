//! Writes the log to standard error on a background thread with a bounded queue, so that serving never waits
//! for the log's reader. Dropped lines are counted and reported.
//!
//! The writer of `tracing-appender` bounds the number of lines, but not their length, and it does not mark
//! where lines were dropped.

use std::{
    fmt,
    io::{self, Write, stderr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Receives each line as it is written, at most 4 KiB of it, such as for a page with the log's last lines.
pub type LogTail = Box<dyn Fn(&str) + Send>;

/// Writes lines to standard error from a background thread.
///
/// If the reader blocks, lines are queued up to a limit and then dropped.
#[derive(Clone)]
pub struct LogWriter {
    queue: SyncSender<Message>,
    format: LogFormat,
    dropped: DroppedLines,
}

/// The number of dropped lines. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct DroppedLines(Arc<DropCounters>);

/// Counters of queued and dropped lines.
#[derive(Debug, Default)]
struct DropCounters {
    /// Size of the queued lines in bytes.
    waiting: AtomicUsize,
    /// Number of dropped lines that have not been reported yet.
    unsaid: AtomicU64,
    all: AtomicU64,
}

impl DropCounters {
    fn add(&self) {
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
    }
}

impl DroppedLines {
    /// Returns the number of dropped lines since the process started.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.all.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LogWriter");
        shown.field("format", &self.format).finish_non_exhaustive()
    }
}

enum Message {
    Line(Vec<u8>),
    /// Writes everything queued before this message, then drops the sender, which wakes the caller.
    Flush(SyncSender<()>),
}

impl LogWriter {
    /// Maximum number of queued lines.
    const CAPACITY: usize = 4096;

    /// Starts the thread. Lines that report dropped lines have the target `target`.
    #[must_use]
    pub fn start(format: LogFormat, target: &'static str, tail: Option<LogTail>) -> Self {
        let (queue, messages) = sync_channel(Self::CAPACITY);
        let dropped = DroppedLines::default();
        let writing = {
            let dropped = dropped.0.clone();
            let report = move |count| dropped_line(count, format, target);
            move || {
                write_all(
                    &messages,
                    &dropped,
                    (format, &report),
                    tail.as_ref(),
                    &mut stderr(),
                );
            }
        };
        // Without the thread nothing is logged, but the server runs.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(writing);
        Self {
            queue,
            format,
            dropped,
        }
    }

    /// Returns the number of dropped lines.
    #[must_use]
    pub fn dropped(&self) -> DroppedLines {
        self.dropped.clone()
    }

    /// Waits until all lines queued so far are written, for at most `patience`, because a full pipe may have
    /// no reader. Call at exit.
    pub fn flush(&self, patience: Duration) {
        let start = Instant::now();
        let (done, is_done) = sync_channel(0);
        let mut message = Message::Flush(done);
        while let Err(TrySendError::Full(unsent)) = self.queue.try_send(message) {
            if start.elapsed() >= patience {
                return;
            }
            message = unsent;
            thread::sleep(Duration::from_millis(1));
        }
        let _ = is_done.recv_timeout(patience.saturating_sub(start.elapsed()));
    }
}

/// Runs the thread's loop, which writes lines as they arrive. `report` formats the line that reports a number
/// of dropped lines.
fn write_all(
    messages: &Receiver<Message>,
    dropped: &DropCounters,
    (format, report): (LogFormat, &dyn Fn(u64) -> Vec<u8>),
    tail: Option<&LogTail>,
    out: &mut impl Write,
) {
    for message in messages {
        let missing = dropped.unsaid.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _ = out.write_all(&report(missing));
        }
        // Write errors are ignored, since standard error may be closed or full.
        match message {
            Message::Line(line) => {
                // The tail is updated first, because standard error may block.
                if let Some(tail) = tail {
                    let kept = shortened(line.clone(), format, MAX_BYTES);
                    tail(&String::from_utf8_lossy(&kept));
                }
                let _ = out.write_all(&line);
                dropped.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            }
            Message::Flush(done) => drop((out.flush(), done)),
        }
    }
}

/// Formats the line that reports dropped lines, with the timestamp of the next line.
fn dropped_line(count: u64, format: LogFormat, target: &str) -> Vec<u8> {
    let message = "log lines were dropped here because standard error was not read in time";
    match format {
        LogFormat::Text => format!(" WARN {target}: {message} count={count}\n").into_bytes(),
        LogFormat::Json => {
            let line = json!({"level": "WARN", "target": target, "message": message, "count": count});
            format!("{line}\n").into_bytes()
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            writer: self,
            bytes: Vec::new(),
            most: MAX_BYTES,
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        let has_traceback = meta.fields().field(TRACEBACK).is_some();
        let mut line = self.make_writer();
        line.most = if has_traceback {
            MAX_WITH_TRACEBACK
        } else {
            MAX_BYTES
        };
        line
    }
}

/// A log line that is being formatted. Dropping the value queues the line.
pub struct Line<'a> {
    writer: &'a LogWriter,
    bytes: Vec<u8>,
    /// Maximum length; a longer line is truncated.
    most: usize,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let LogWriter {
            queue,
            format,
            dropped: DroppedLines(dropped),
        } = self.writer;
        let is_full = dropped.waiting.load(Ordering::Relaxed) > MAX_WAITING;
        let most = if is_full { MAX_BYTES } else { self.most };
        let line = shortened(std::mem::take(&mut self.bytes), *format, most);
        let length = line.len();
        dropped.waiting.fetch_add(length, Ordering::Relaxed);
        if queue.try_send(Message::Line(line)).is_err() {
            dropped.waiting.fetch_sub(length, Ordering::Relaxed);
            dropped.add();
        }
    }
}

/// Maximum length of a line in bytes.
const MAX_BYTES: usize = 4096;

/// Events with this field may be longer; the code that logs them limits their number and length.
const TRACEBACK: &str = "traceback";

/// Number of queued bytes above which events with a traceback are truncated too.
const MAX_WAITING: usize = 16 << 20;

/// Maximum length of an event with a traceback of 64 KiB, indented or as JSON.
const MAX_WITH_TRACEBACK: usize = 160 << 10;

/// Truncates a line to at most `most` bytes, keeping it valid UTF-8 or JSON.
fn shortened(mut line: Vec<u8>, format: LogFormat, most: usize) -> Vec<u8> {
    if line.len() <= most {
        return line;
    }
    if matches!(format, LogFormat::Json)
        && let Some(short) = shortened_json(&line, most)
    {
        return short;
    }
    const END: &str = "… (cut)\n";
    let mut end = most - END.len();
    // Never cuts within a character: continuation bytes start with the bits 10.
    while end > 0 && line[end] & 0b1100_0000 == 0b1000_0000 {
        end -= 1;
    }
    line.truncate(end);
    line.extend_from_slice(END.as_bytes());
    line
}

/// Shortens long strings in a JSON object until it fits.
fn shortened_json(line: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(line).ok()?;
    let mut longest = most / 2;
    loop {
        cut_strings(&mut value, longest);
        let mut short = serde_json::to_vec(&value).ok()?;
        short.push(b'\n');
        if short.len() <= most {
            return Some(short);
        }
        if longest == 0 {
            // The object is too long because of its many fields, not because of long strings.
            let bytes = line.len();
            value =
                json!({"level": value["level"], "message": "a line of the log was too long", "bytes": bytes});
            return Some(format!("{value}\n").into_bytes());
        }
        longest /= 2;
    }
}

fn cut_strings(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) if text.len() > longest => {
            let end = text.floor_char_boundary(longest);
            text.truncate(end);
            text.push('…');
        }
        Value::Array(values) => values.iter_mut().for_each(|value| cut_strings(value, longest)),
        Value::Object(fields) => fields.values_mut().for_each(|value| cut_strings(value, longest)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Returns a tail, and the lines that it received.
    fn tail_of_test() -> (LogTail, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = lines.clone();
        let tail = move |line: &str| kept.lock().unwrap().push(line.to_owned());
        (Box::new(tail), lines)
    }

    fn report(count: u64) -> Vec<u8> {
        dropped_line(count, LogFormat::Json, "test")
    }

    #[test]
    fn long_lines_of_text_are_cut_between_characters() {
        for offset in 0..4 {
            let line = format!("{}{}\n", "x".repeat(offset), "ü€😀".repeat(1000));
            let short =
                String::from_utf8(shortened(line.clone().into_bytes(), LogFormat::Text, MAX_BYTES)).unwrap();
            assert!(short.len() <= MAX_BYTES && short.len() > MAX_BYTES - 20);
            let kept = short.strip_suffix("… (cut)\n").unwrap();
            assert!(line.starts_with(kept));
        }
        let short = b"short \xc3\xbc\n".to_vec();
        assert_eq!(shortened(short.clone(), LogFormat::Text, MAX_BYTES), short);
    }

    #[test]
    fn long_lines_of_json_stay_json() {
        let long = "a \"quoted\" ü\n".repeat(2000);
        let line =
            json!({"level": "ERROR", "message": "failed", "fields": {"error": long, "list": [long, 7]}});
        let short = shortened(format!("{line}\n").into_bytes(), LogFormat::Json, MAX_BYTES);
        assert!(short.len() <= MAX_BYTES && short.ends_with(b"\n"));
        let read: Value = serde_json::from_slice(&short).unwrap();
        assert_eq!(
            (&read["level"], &read["message"], &read["fields"]["list"][1]),
            (&json!("ERROR"), &json!("failed"), &json!(7))
        );
        let error = read["fields"]["error"].as_str().unwrap();
        assert!(long.starts_with(error.strip_suffix('…').unwrap()) && error.len() > 100);

        let fields: serde_json::Map<String, Value> = (0..1000)
            .map(|index| (format!("field {index}"), json!(index)))
            .collect();
        let short = shortened(
            Value::Object(fields).to_string().into_bytes(),
            LogFormat::Json,
            MAX_BYTES,
        );
        let read: Value = serde_json::from_slice(&short).unwrap();
        assert_eq!(read["message"], "a line of the log was too long");
    }

    #[test]
    fn tracebacks_are_whole() {
        use tracing_subscriber::{Layer, layer::SubscriberExt, registry};

        for (format, tail) in [(LogFormat::Text, "1\nend"), (LogFormat::Json, "1\\nend\"")] {
            let (queue, messages) = sync_channel(8);
            let dropped = DroppedLines::default();
            let writer = LogWriter {
                queue,
                format,
                dropped: dropped.clone(),
            };
            let layer = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_writer(writer);
            let layer = match format {
                LogFormat::Text => layer.boxed(),
                LogFormat::Json => layer.json().flatten_event(true).boxed(),
            };
            let long = format!("{}end", "  File \"a\", line 1\n".repeat(3000));
            tracing::subscriber::with_default(registry().with(layer), || {
                tracing::error!(traceback = %long, "failed");
                tracing::error!(other = %long, "failed");
            });
            let mut out = Vec::new();
            let (console, lines) = tail_of_test();
            write_all(&messages, &dropped.0, (format, &report), Some(&console), &mut out);
            assert_eq!(dropped.0.waiting.load(Ordering::Relaxed), 0);
            assert!(lines.lock().unwrap().iter().all(|line| line.len() <= MAX_BYTES));
            let out = String::from_utf8(out).unwrap();
            assert!(long.len() > 50_000 && out.len() > long.len() && out.len() < 2 * long.len());
            assert_eq!(out.matches(tail).count(), 1, "{format:?}");
        }
    }

    #[test]
    fn dropped_lines_are_counted_and_said() {
        let (queue, messages) = sync_channel(2);
        let dropped = DroppedLines::default();
        let writer = LogWriter {
            queue,
            format: LogFormat::Json,
            dropped: dropped.clone(),
        };
        for number in 0..5 {
            writeln!(writer.make_writer(), "{{\"number\":{number}}}").unwrap();
        }
        drop(writer);
        let mut out = Vec::new();
        let (tail, shown) = tail_of_test();
        write_all(
            &messages,
            &dropped.0,
            (LogFormat::Json, &report),
            Some(&tail),
            &mut out,
        );
        assert_eq!(shown.lock().unwrap().last().unwrap(), "{\"number\":1}\n");
        let lines: Vec<Value> = out
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        assert_eq!(lines.len(), 3, "{}", String::from_utf8_lossy(&out));
        assert_eq!((&lines[0]["count"], dropped.count()), (&json!(3), 3));
        assert_eq!((&lines[1]["number"], &lines[2]["number"]), (&json!(0), &json!(1)));
    }
}
