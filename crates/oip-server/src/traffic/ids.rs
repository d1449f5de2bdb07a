//! Request ids: `X-Request-ID`, and W3C Trace Context's `traceparent`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use oip_service::RequestIds;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Maximum length of an id, to fit log lines and other systems' headers.
const MAX_ID: usize = 128;

/// The ids of a request. The response repeats them. Malformed ids are ignored.
pub(crate) struct Ids {
    request: Option<HeaderValue>,
    trace_parent: Option<HeaderValue>,
}

impl Ids {
    /// Reads the client's ids. With `new`, generates a missing request id.
    pub(crate) fn of_request(headers: &HeaderMap, new: Option<&RequestIds>) -> Self {
        let request = headers.get(REQUEST_ID).filter(|id| is_id(id.as_bytes())).cloned();
        let trace_parent = headers.get(TRACE_PARENT);
        let trace_parent = trace_parent
            .filter(|value| trace_id(value.as_bytes()).is_some())
            .cloned();
        let made = || HeaderValue::try_from(new?.next_id()).ok();
        Self {
            request: request.or_else(made),
            trace_parent,
        }
    }

    /// Returns the request id: the client's, or a generated one if requests are logged.
    pub(crate) fn request(&self) -> Option<&str> {
        self.request.as_ref()?.to_str().ok()
    }

    /// Returns the caller's `traceparent`, if it is well-formed.
    pub(crate) fn trace_parent(&self) -> Option<&str> {
        self.trace_parent.as_ref()?.to_str().ok()
    }

    /// Returns the trace id of the caller's `traceparent`.
    pub(crate) fn trace(&self) -> Option<&str> {
        trace_id(self.trace_parent.as_ref()?.as_bytes())
    }

    /// Writes the ids to the response's headers.
    pub(crate) fn write(&mut self, headers: &mut HeaderMap) {
        if let Some(id) = self.request.take() {
            headers.insert(REQUEST_ID, id);
        }
        if let Some(trace_parent) = self.trace_parent.take() {
            headers.insert(TRACE_PARENT, trace_parent);
        }
    }
}

/// Returns whether `value` is a valid id: visible characters, within the maximum length.
fn is_id(value: &[u8]) -> bool {
    !value.is_empty() && value.len() <= MAX_ID && value.iter().all(u8::is_ascii_graphic)
}

/// Returns the trace id of a well-formed `traceparent`: version, trace id, parent span, flags.
///
/// Later versions of the format may append fields after a dash (Trace Context, 3.2.4).
fn trace_id(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value)
        .ok()
        .filter(|text| text.len() <= MAX_ID)?;
    let mut parts = text.split('-');
    let mut part = |digits: usize| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let part = parts.next()?;
        (part.len() == digits && part.bytes().all(is_digit)).then_some(part)
    };
    let (version, trace, span, _flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    let is_something = |id: &str| id.bytes().any(|byte| byte != b'0');
    let has_more = parts.next().is_some();
    (version != "ff" && (version != "00" || !has_more) && is_something(trace) && is_something(span))
        .then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_that_lines_and_headers_can_hold_are_taken() {
        for (id, is_good) in [
            ("a", true),
            ("0f1e-2d3c/4b5a==", true),
            (&"x".repeat(128), true),
            (&"x".repeat(129), false),
            ("", false),
            ("a b", false),
            ("a\tb", false),
            ("ä", false),
        ] {
            assert_eq!(is_id(id.as_bytes()), is_good, "{id}");
        }
    }

    #[test]
    fn traces_are_read_as_the_standard_says() {
        const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
        for (value, is_good) in [
            (format!("00-{TRACE}-b7ad6b7169203331-01"), true),
            (format!("00-{TRACE}-b7ad6b7169203331-00"), true),
            (format!("cc-{TRACE}-b7ad6b7169203331-01-what-comes"), true),
            (format!("00-{TRACE}-b7ad6b7169203331-01-what-comes"), false),
            (format!("ff-{TRACE}-b7ad6b7169203331-01"), false),
            (format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()), false),
            (format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)), false),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), false),
            (format!("00-{TRACE}-b7ad6b7169203331"), false),
            (format!("00-{TRACE}-b7ad6b7169203331-1"), false),
            (
                format!("cc-{TRACE}-b7ad6b7169203331-01-{}", "x".repeat(100)),
                false,
            ),
            (String::new(), false),
        ] {
            assert_eq!(trace_id(value.as_bytes()).is_some(), is_good, "{value}");
        }
        let value = format!("00-{TRACE}-b7ad6b7169203331-01");
        assert_eq!(trace_id(value.as_bytes()), Some(TRACE));
    }
}
