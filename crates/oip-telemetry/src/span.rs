//! Spans: timed operations within a trace.

use std::{borrow::Cow, time::SystemTime};

use crate::ids::{SpanId, TraceId};

/// A timed operation, with its attributes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Span {
    /// The trace that the span belongs to.
    pub trace: TraceId,
    /// The span's own id.
    pub id: SpanId,
    /// The id of the parent span; `None` for a root span.
    pub parent: Option<SpanId>,
    /// A name of low cardinality, because collectors group by it.
    pub name: Cow<'static, str>,
    /// Whether the span processes a caller's request or is internal to the program.
    pub kind: Kind,
    /// The time when the operation started.
    pub start: SystemTime,
    /// The time when the operation ended.
    pub end: SystemTime,
    /// The attributes of the operation, named by OpenTelemetry's conventions where they exist.
    pub attributes: Vec<(&'static str, Value)>,
    /// The error message, if the operation failed.
    pub failure: Option<String>,
}

/// The kind of span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// An operation within the program.
    #[default]
    Internal,
    /// The processing of a request from another program.
    Server,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A string attribute.
    Text(Cow<'static, str>),
    /// An integer attribute.
    Number(i64),
}

impl Span {
    /// Creates an internal span without attributes.
    #[must_use]
    pub fn new(
        trace: TraceId,
        id: SpanId,
        name: impl Into<Cow<'static, str>>,
        start: SystemTime,
        end: SystemTime,
    ) -> Self {
        Self {
            trace,
            id,
            parent: None,
            name: name.into(),
            kind: Kind::Internal,
            start,
            end,
            attributes: Vec::new(),
            failure: None,
        }
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}
