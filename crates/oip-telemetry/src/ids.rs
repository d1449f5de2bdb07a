//! Trace and span ids, and the W3C Trace Context header `traceparent` that carries them between programs.

use std::fmt;

/// A trace id, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub(crate) u128);

/// A span id, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub(crate) u64);

impl TraceId {
    /// Creates a random trace id.
    #[must_use]
    pub fn random() -> Self {
        Self(fastrand::u128(1..))
    }
}

impl SpanId {
    /// Creates a random span id.
    #[must_use]
    pub fn random() -> Self {
        Self(fastrand::u64(1..))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The caller's span of a request, from its `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace that the caller's span belongs to.
    pub trace: TraceId,
    /// The caller's span id.
    pub span: SpanId,
    /// Whether the caller records the trace.
    pub is_sampled: bool,
}

impl Parent {
    /// Parses the header's value; `None` if it is malformed. Later versions of the header may append fields
    /// after a dash.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split('-');
        let mut part = |digits: usize| {
            let part = parts.next()?;
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let is_hex = part.len() == digits && part.bytes().all(is_digit);
            is_hex.then(|| u128::from_str_radix(part, 16).ok())?
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let has_more = parts.next().is_some();
        if version == 0xff || version == 0 && has_more || trace == 0 || span == 0 {
            return None;
        }
        Some(Self {
            trace: TraceId(trace),
            span: SpanId(u64::try_from(span).ok()?),
            is_sampled: flags & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_as_the_standard_says() {
        const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
        let parent = Parent::parse(&format!("00-{TRACE}-00f067aa0ba902b7-01")).expect("it is well-formed");
        assert_eq!(
            (
                parent.trace.to_string(),
                parent.span.to_string(),
                parent.is_sampled
            ),
            (TRACE.to_owned(), "00f067aa0ba902b7".to_owned(), true)
        );
        let unsampled = Parent::parse(&format!("00-{TRACE}-00f067aa0ba902b7-02"));
        assert!(!unsampled.expect("it is well-formed").is_sampled);
        assert!(Parent::parse(&format!("cc-{TRACE}-00f067aa0ba902b7-01-more")).is_some());
        for wrong in [
            String::new(),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-1"),
            format!("00-+{}-00f067aa0ba902b7-01", &TRACE[1..]),
        ] {
            assert_eq!(Parent::parse(&wrong), None, "{wrong}");
        }
    }
}
