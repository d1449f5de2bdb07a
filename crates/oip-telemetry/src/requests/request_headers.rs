//! Request ids: `X-Request-ID`, and W3C Trace Context's `traceparent`.

use http::{HeaderMap, HeaderName, HeaderValue};
use oip_service::RequestIds;

use crate::ids::Parent;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Maximum length of an id, to fit log lines and other systems' headers.
const MAX_ID: usize = 128;

/// The ids of a request. The response repeats them. Malformed ids are ignored.
pub(super) struct Ids {
    request: Option<HeaderValue>,
    /// The value of `traceparent`, and its meaning.
    trace_parent: Option<(HeaderValue, Parent)>,
}

impl Ids {
    /// Reads the client's ids. With `new`, generates a missing request id.
    pub(super) fn of_request(headers: &HeaderMap, new: Option<&RequestIds>) -> Self {
        let request = headers.get(REQUEST_ID).filter(|id| is_id(id.as_bytes())).cloned();
        let trace_parent = headers.get(TRACE_PARENT);
        let trace_parent = trace_parent.and_then(|value| Some((value.clone(), parent(value)?)));
        let made = || HeaderValue::try_from(new?.next_id()).ok();
        Self {
            request: request.or_else(made),
            trace_parent,
        }
    }

    /// Returns the request id: the client's, or a generated one if requests are logged.
    pub(super) fn request(&self) -> Option<&str> {
        self.request.as_ref()?.to_str().ok()
    }

    /// Returns the caller's `traceparent`, if it is well-formed.
    pub(super) fn parent(&self) -> Option<&Parent> {
        self.trace_parent.as_ref().map(|(_, parent)| parent)
    }

    /// Returns the trace id of the caller's `traceparent`.
    pub(super) fn trace(&self) -> Option<String> {
        Some(self.parent()?.trace.to_string())
    }

    /// Writes the ids to the response's headers.
    pub(super) fn write(&mut self, headers: &mut HeaderMap) {
        if let Some(id) = self.request.take() {
            headers.insert(REQUEST_ID, id);
        }
        if let Some((trace_parent, _)) = self.trace_parent.take() {
            headers.insert(TRACE_PARENT, trace_parent);
        }
    }
}

/// Returns whether `value` is a valid id: visible characters, within the maximum length.
fn is_id(value: &[u8]) -> bool {
    !value.is_empty() && value.len() <= MAX_ID && value.iter().all(u8::is_ascii_graphic)
}

/// Parses a `traceparent`. Later versions of the format may have any length, so it is limited.
fn parent(value: &HeaderValue) -> Option<Parent> {
    let text = value.to_str().ok().filter(|text| text.len() <= MAX_ID)?;
    Parent::parse(text)
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
    fn traces_of_callers_are_repeated_within_the_maximum_length() {
        const PARENT: &str = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for (value, is_good) in [
            (PARENT.to_owned(), true),
            (format!("{PARENT}-what-comes"), true),
            (format!("{PARENT}-{}", "x".repeat(100)), false),
            (PARENT.to_uppercase(), false),
            (String::new(), false),
        ] {
            let headers = HeaderMap::from_iter([(TRACE_PARENT, value.parse().expect("visible characters"))]);
            let mut ids = Ids::of_request(&headers, None);
            let trace = ids.trace();
            assert_eq!(
                trace.as_deref(),
                is_good.then_some("0af7651916cd43dd8448eb211c80319c"),
                "{value}"
            );
            let mut repeated = HeaderMap::new();
            ids.write(&mut repeated);
            assert_eq!(
                repeated,
                if is_good { headers } else { HeaderMap::new() },
                "{value}"
            );
        }
    }
}
