//! A part of a request's time.

use std::{borrow::Cow, time::SystemTime};

use crate::ids::{SpanId, TraceId};

/// A part of a request's time, with what is known of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Span {
    /// The trace that it belongs to.
    pub trace: TraceId,
    /// Its own id.
    pub id: SpanId,
    /// The span that it is a part of.
    pub parent: Option<SpanId>,
    /// A name out of few: collectors group by it.
    pub name: Cow<'static, str>,
    /// Whether it answers a caller.
    pub kind: Kind,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// Its attributes, by OpenTelemetry's names if there are any.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// A span's place between programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Within this program.
    #[default]
    Internal,
    /// The answer to another program's request.
    Server,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
}

impl Span {
    /// A span within the program, without attributes.
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
