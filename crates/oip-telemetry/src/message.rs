//! OTLP trace messages, reduced to the fields in use (`opentelemetry/proto/trace/v1/trace.proto` 1.x), and
//! types shared with metrics.

use std::time::{SystemTime, UNIX_EPOCH};

use prost::{Message, Oneof};

use crate::span::{Kind, Span, Value};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 3")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// The collector's response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CollectorResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<PartialSuccess>,
}

/// The rejected part of an accepted request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(crate) rejected: i64,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}

/// `SPAN_KIND_INTERNAL`, `SPAN_KIND_SERVER`, `STATUS_CODE_ERROR`.
const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const ERROR: i32 = 2;

impl Request {
    /// Creates a request with the spans of a program whose attributes are `resource`.
    pub(crate) fn new(resource: &[(String, String)], version: &str, spans: &[Span]) -> Self {
        Self {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource::new(resource)),
                scope_spans: vec![ScopeSpans {
                    scope: Some(Scope::new(version)),
                    spans: spans.iter().map(SpanMessage::of).collect(),
                }],
            }],
        }
    }
}

impl SpanMessage {
    fn of(span: &Span) -> Self {
        let parent = span.parent.map(|parent| parent.0.to_be_bytes().to_vec());
        let attributes = span.attributes.iter().map(|(key, value)| {
            let value = match value {
                Value::Text(text) => Any::Text(text.clone().into_owned()),
                Value::Number(number) => Any::Number(*number),
            };
            pair(key, value)
        });
        Self {
            trace_id: span.trace.0.to_be_bytes().to_vec(),
            span_id: span.id.0.to_be_bytes().to_vec(),
            parent_span_id: parent.unwrap_or_default(),
            name: span.name.clone().into_owned(),
            kind: match span.kind {
                Kind::Internal => INTERNAL,
                Kind::Server => SERVER,
            },
            start_time_unix_nano: nanoseconds(span.start),
            end_time_unix_nano: nanoseconds(span.end),
            attributes: attributes.collect(),
            status: span
                .failure
                .clone()
                .map(|message| Status { message, code: ERROR }),
        }
    }
}

impl Resource {
    /// Creates the resource, which describes the program.
    pub(crate) fn new(attributes: &[(String, String)]) -> Self {
        let attributes = attributes.iter().map(|(key, value)| KeyValue::text(key, value));
        Self {
            attributes: attributes.collect(),
        }
    }
}

impl Scope {
    /// Creates the instrumentation scope: this library and its version.
    pub(crate) fn new(version: &str) -> Self {
        Self {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: version.to_owned(),
        }
    }
}

impl KeyValue {
    pub(crate) fn text(key: &str, value: &str) -> Self {
        pair(key, Any::Text(value.to_owned()))
    }
}

fn pair(key: &str, value: Any) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

pub(crate) fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
