//! A test collector: responds to `POST /v1/traces` and `/v1/metrics` as scripted, and records messages. It
//! decodes messages by field number, independently of the exporter, so that encoder and decoder cannot share
//! a bug.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

/// A recorded message.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// The request line and headers.
    pub head: String,
    /// The attributes of the program that sent the message.
    pub resource: BTreeMap<String, String>,
    /// The spans of the message, in order.
    pub spans: Vec<ReceivedSpan>,
    /// The metrics of the message, by name.
    pub metrics: BTreeMap<String, ReceivedMetric>,
}

/// A received metric.
#[derive(Debug, Default)]
pub struct ReceivedMetric {
    /// `gauge`, `sum` or `histogram`.
    pub kind: &'static str,
    /// The description of the metric.
    pub description: String,
    /// The metric's `AggregationTemporality`, as a number.
    pub temporality: u64,
    /// Whether the metric is a counter.
    pub is_monotonic: bool,
    /// The data points of the metric.
    pub points: Vec<ReceivedPoint>,
}

/// A received data point.
#[derive(Debug, Default)]
pub struct ReceivedPoint {
    /// The data point's labels.
    pub attributes: BTreeMap<String, String>,
    /// Start time in nanoseconds since 1970.
    pub start: u64,
    /// Time in nanoseconds since 1970.
    pub time: u64,
    /// The value, or a histogram's sum.
    pub value: f64,
    /// The number of observations of a histogram.
    pub count: u64,
    /// The bucket counts of a histogram.
    pub counts: Vec<u64>,
    /// The bucket bounds of a histogram.
    pub bounds: Vec<f64>,
}

/// A received span.
#[derive(Debug, Default)]
pub struct ReceivedSpan {
    /// The trace id in hexadecimal digits, like the next two ids.
    pub trace: String,
    /// The span's own id.
    pub id: String,
    /// The parent's id; empty for a root span.
    pub parent: String,
    /// The span's name.
    pub name: String,
    /// The span's `SpanKind`, as a number.
    pub kind: u64,
    /// Start in nanoseconds since 1970.
    pub start: u64,
    /// End in nanoseconds since 1970.
    pub end: u64,
    /// The attributes of the span; numbers as strings.
    pub attributes: BTreeMap<String, String>,
    /// The span's `StatusCode` as a number, and its message; `None` without a status.
    pub failure: Option<(u64, String)>,
}

/// A collector on a local socket.
#[derive(Debug)]
pub struct Collector {
    /// The collector's URL without a path.
    pub url: String,
    posted: Receiver<ReceivedMessage>,
}

impl Collector {
    /// Starts a collector that sends `answers` in turn, and then status 200. An answer consists of the end of
    /// a status line, such as `200 OK`, and a body.
    #[must_use]
    pub fn start(answers: Vec<(&'static str, Vec<u8>)>) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), answers)
    }

    /// Starts a collector on an existing listener.
    #[must_use]
    pub fn on(listener: TcpListener, answers: Vec<(&'static str, Vec<u8>)>) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, posted) = channel();
        thread::spawn(move || {
            let mut answers = answers.into_iter();
            for stream in listener.incoming() {
                serve(stream.unwrap(), &mut answers, &sender);
            }
        });
        Self { url, posted }
    }

    /// Returns the next recorded message.
    #[must_use]
    pub fn message(&self) -> ReceivedMessage {
        self.posted.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// Returns whether no message arrives for `time`.
    #[must_use]
    pub fn has_nothing_for(&self, time: Duration) -> bool {
        self.posted.recv_timeout(time).is_err()
    }
}

/// Serves one connection to its end.
fn serve(
    stream: std::net::TcpStream,
    answers: &mut impl Iterator<Item = (&'static str, Vec<u8>)>,
    posted: &Sender<ReceivedMessage>,
) {
    let mut out = stream.try_clone().unwrap();
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().unwrap())
        });
        let mut body = vec![0; length.unwrap()];
        stream.read_exact(&mut body).unwrap();
        let (status, answer) = answers.next().unwrap_or(("200 OK", Vec::new()));
        write!(
            out,
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        )
        .unwrap();
        out.write_all(&answer).unwrap();
        let _ = posted.send(read(head, &body));
    }
}

fn read(head: String, body: &[u8]) -> ReceivedMessage {
    let (mut resource, mut spans, mut metrics) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    let are_metrics = head
        .lines()
        .next()
        .is_some_and(|line| line.contains("/v1/metrics "));
    for resource_spans in Fields(body).messages(1) {
        for message in Fields(resource_spans).messages(1) {
            resource.extend(Fields(message).messages(1).map(pair));
        }
        for scope in Fields(resource_spans).messages(2) {
            assert_eq!(Fields(scope).messages(1).count(), 1, "the scope");
            match are_metrics {
                true => metrics.extend(Fields(scope).messages(2).map(metric)),
                false => spans.extend(Fields(scope).messages(2).map(span)),
            }
        }
    }
    ReceivedMessage {
        head,
        resource,
        spans,
        metrics,
    }
}

fn metric(message: &[u8]) -> (String, ReceivedMetric) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (mut name, mut metric) = (String::new(), ReceivedMetric::default());
    for (field, value) in Fields(message) {
        match (field, value) {
            (1, Field::Bytes(bytes)) => name = text(bytes),
            (2, Field::Bytes(bytes)) => metric.description = text(bytes),
            (kind @ (5 | 7 | 9), Field::Bytes(bytes)) => {
                metric.kind = match kind {
                    5 => "gauge",
                    7 => "sum",
                    _ => "histogram",
                };
                for (field, value) in Fields(bytes) {
                    match (field, value) {
                        (1, Field::Bytes(bytes)) => metric.points.push(point(bytes, kind == 9)),
                        (2, Field::Number(temporality)) => metric.temporality = temporality,
                        (3, Field::Number(is_monotonic)) => metric.is_monotonic = is_monotonic == 1,
                        (field, _) => panic!("a field of a metric's data: {field}"),
                    }
                }
            }
            (field, _) => panic!("a field of a metric: {field}"),
        }
    }
    (name, metric)
}

fn point(message: &[u8], is_histogram: bool) -> ReceivedPoint {
    let fixed = |bytes: &[u8]| -> Vec<u64> {
        let pieces = bytes.chunks_exact(8);
        pieces
            .map(|piece| u64::from_le_bytes(piece.try_into().unwrap()))
            .collect()
    };
    let mut point = ReceivedPoint::default();
    for (field, value) in Fields(message) {
        match (field, value, is_histogram) {
            (2, Field::Number(start), _) => point.start = start,
            (3, Field::Number(time), _) => point.time = time,
            (4, Field::Number(count), true) => point.count = count,
            (5, Field::Number(sum), true) => point.value = f64::from_bits(sum),
            (6, Field::Bytes(counts), true) => point.counts = fixed(counts),
            (7, Field::Bytes(bounds), true) => {
                point.bounds = fixed(bounds).into_iter().map(f64::from_bits).collect();
            }
            (4, Field::Number(value), false) => point.value = f64::from_bits(value),
            (6, Field::Number(value), false) => point.value = value as f64,
            (9, Field::Bytes(bytes), true) | (7, Field::Bytes(bytes), false) => {
                point.attributes.extend([pair(bytes)]);
            }
            (field, ..) => panic!("a field of a point: {field}"),
        }
    }
    point
}

fn span(message: &[u8]) -> ReceivedSpan {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut span = ReceivedSpan::default();
    for (field, value) in Fields(message) {
        match (field, value) {
            (1, Field::Bytes(bytes)) => span.trace = hex(bytes),
            (2, Field::Bytes(bytes)) => span.id = hex(bytes),
            (4, Field::Bytes(bytes)) => span.parent = hex(bytes),
            (5, Field::Bytes(bytes)) => span.name = text(bytes),
            (6, Field::Number(kind)) => span.kind = kind,
            (7, Field::Number(time)) => span.start = time,
            (8, Field::Number(time)) => span.end = time,
            (9, Field::Bytes(bytes)) => drop(span.attributes.insert(pair(bytes).0, pair(bytes).1)),
            (15, Field::Bytes(bytes)) => {
                let (mut code, mut reason) = (0, String::new());
                for (field, value) in Fields(bytes) {
                    match (field, value) {
                        (2, Field::Bytes(bytes)) => reason = text(bytes),
                        (3, Field::Number(number)) => code = number,
                        other => panic!("a field of a status: {}", other.0),
                    }
                }
                span.failure = Some((code, reason));
            }
            (field, _) => panic!("a field of a span: {field}"),
        }
    }
    span
}

fn pair(message: &[u8]) -> (String, String) {
    let key = Fields(message).messages(1).next().unwrap();
    let value = Fields(message).messages(2).next().unwrap();
    let value = match Fields(value).next().unwrap() {
        (1, Field::Bytes(text)) => String::from_utf8(text.to_vec()).unwrap(),
        (3, Field::Number(number)) => (number as i64).to_string(),
        (field, _) => panic!("a kind of value: {field}"),
    };
    (String::from_utf8(key.to_vec()).unwrap(), value)
}

/// The fields of a protobuf message.
struct Fields<'a>(&'a [u8]);

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    /// Returns all occurrences of a length-delimited field.
    fn messages(self, wanted: u64) -> impl Iterator<Item = &'a [u8]> {
        self.filter_map(move |(field, value)| match value {
            Field::Bytes(bytes) if field == wanted => Some(bytes),
            _ => None,
        })
    }

    fn varint(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = self.0.split_first().unwrap();
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let tag = self.varint();
        let value = match tag & 7 {
            0 => Field::Number(self.varint()),
            1 => {
                let (bytes, rest) = self.0.split_at(8);
                self.0 = rest;
                Field::Number(u64::from_le_bytes(bytes.try_into().unwrap()))
            }
            2 => {
                let length = usize::try_from(self.varint()).unwrap();
                let (bytes, rest) = self.0.split_at(length);
                self.0 = rest;
                Field::Bytes(bytes)
            }
            kind => panic!("a kind of field: {kind}"),
        };
        Some((tag >> 3, value))
    }
}
