//! Interprets responses, including those of servers that do not speak this protocol.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION, RETRY_AFTER},
    response,
};
use oip_types::{
    ErrorCode, ServiceError,
    rest::{HEADER_LENGTH, parse_header_length},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::encoding;
use crate::{ClientError, Compression, ErrorKind, Result, Status};

/// A complete response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Maximum number of bytes to read from the body of an error response.
pub(super) const MAX_REFUSAL: usize = 64 << 10;
/// Hint that the port may speak another protocol, for responses that are not of this protocol.
pub(super) const HINT: &str = "if this is a gRPC port, use grpc:// instead of http://";
/// A quarter of the maximum number of characters quoted from a foreign response.
const SHOWN: usize = 200;

impl Response {
    pub(super) fn new(head: response::Parts, body: Bytes) -> Self {
        Self {
            status: head.status,
            headers: head.headers,
            body,
        }
    }

    /// Returns the response if its status is successful.
    pub(super) fn success(self) -> Result<Self> {
        if self.status.is_success() {
            return Ok(self);
        }
        let status = self.status.as_u16();
        let code = code(status);
        let message = self.refusal();
        let retry_after = self.retry_after();
        Err(ClientError::refused(code, Status::Http(status), message).retry_after(retry_after))
    }

    /// Interprets a health response. Servers differ: the protocol requires a body, but Triton and MLServer
    /// send an empty one. "Not ready" is 503 in Tensorferry and KServe, and 400 in Triton and MLServer; some
    /// servers respond to liveness checks with 500.
    pub(super) fn health(self) -> Result<bool> {
        match self.status.as_u16() {
            400 | 500 | 503 => Ok(false),
            _ => {
                let answer = self.success()?;
                if answer.is_html() {
                    return Err(answer.foreign());
                }
                let said = serde_json::from_slice::<Value>(&answer.body).ok();
                let said = said
                    .as_ref()
                    .and_then(|said| said.get("ready").or(said.get("live"))?.as_bool());
                Ok(said.unwrap_or(true))
            }
        }
    }

    /// Decompresses the body.
    pub(super) fn decompressed(mut self, limit: usize) -> Result<Self> {
        let Some(encoding) = self.headers.get(CONTENT_ENCODING) else {
            return Ok(self);
        };
        let encoding = String::from_utf8_lossy(encoding.as_bytes())
            .trim()
            .to_ascii_lowercase();
        let compression = match &*encoding {
            "" | "identity" => return Ok(self),
            "gzip" | "x-gzip" => Compression::Gzip,
            "deflate" => Compression::Deflate,
            other => {
                let found = tensor_core::QuotedName(other).to_string();
                let expected = "expected a Content-Encoding of gzip or deflate";
                return Err(broken(ServiceError::invalid(format!(
                    "{expected}, found {found}"
                ))));
            }
        };
        self.body = encoding::decompress(compression, &self.body, limit)?;
        Ok(self)
    }

    /// Returns the length of the JSON part, if a header gives it.
    pub(super) fn header_length(&self) -> Result<Option<usize>> {
        let header = self.headers.get(HEADER_LENGTH);
        let parsed = header.map(|value| parse_header_length(value.as_bytes(), self.body.len()));
        match parsed.transpose().map_err(broken)? {
            // A JSON length of 0 is allowed only in requests.
            Some(0) => Err(broken(ServiceError::invalid(
                "Inference-Header-Content-Length: expected a number from 1, found 0",
            ))),
            length => Ok(length),
        }
    }

    /// Parses a JSON body.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T> {
        self.expect_json()?;
        let read = serde_json::from_slice(&self.body);
        read.map_err(|error| broken(ServiceError::invalid(error.to_string())))
    }

    /// Returns an error that describes the body if it is certainly not JSON.
    pub(super) fn expect_json(&self) -> Result<()> {
        if self.body.is_empty() {
            let what = format!(
                "expected JSON, found an empty body (HTTP {})",
                self.status.as_u16()
            );
            return Err(broken(ServiceError::invalid(what)));
        }
        match self.is_html() {
            true => Err(self.foreign()),
            false => Ok(()),
        }
    }

    /// Creates the error for a response that does not come from an inference server.
    fn foreign(&self) -> ClientError {
        let message = format!(
            "expected JSON, found a web page{}; is this the address of an inference server?",
            self.title()
        );
        ClientError::new(ErrorKind::Protocol, message)
    }

    fn is_html(&self) -> bool {
        let content_type = self.headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
        content_type.is_some_and(|content_type| content_type.to_ascii_lowercase().starts_with(b"text/html"))
            || self.body.trim_ascii_start().first() == Some(&b'<')
    }

    /// Returns the title of an HTML page.
    fn title(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let lower = text.to_ascii_lowercase();
        let title = lower.find("<title>").and_then(|start| {
            let start = start + "<title>".len();
            let end = start + lower[start..].find("</title>")?;
            text.get(start..end)
        });
        title.map_or(String::new(), |title| format!(" ({})", one_line(title)))
    }

    /// Extracts the server's error message, if any.
    fn refusal(&self) -> String {
        if self.status.is_redirection() {
            let to = self
                .headers
                .get(LOCATION)
                .map_or("elsewhere".into(), |to| String::from_utf8_lossy(to.as_bytes()));
            return format!("the server is at {}; redirects are not followed", one_line(&to));
        }
        let reason = self.status.canonical_reason().unwrap_or("no reason given");
        // Some proxies also compress error responses.
        let Ok(body) = self.decompressed_error() else {
            return reason.to_owned();
        };
        if let Ok(json) = serde_json::from_slice::<Value>(&body) {
            return self_described(&json).unwrap_or_else(|| one_line(&json.to_string()));
        }
        if body.is_empty() {
            return format!("{reason}, without an explanation");
        }
        if self.is_html() {
            return format!("{reason}, from a web page{}", self.title());
        }
        one_line(&String::from_utf8_lossy(&body))
    }

    fn decompressed_error(&self) -> Result<Bytes> {
        const LIMIT: usize = 64 << 10;
        let copy = Self {
            status: self.status,
            headers: self.headers.clone(),
            body: self.body.clone(),
        };
        Ok(copy.decompressed(LIMIT)?.body)
    }

    /// Returns `Retry-After` in seconds. Dates are ignored, because they need synchronized clocks.
    fn retry_after(&self) -> Option<Duration> {
        let value = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        value.trim().parse().ok().map(Duration::from_secs)
    }
}

/// Creates the error for a response of this protocol that is invalid.
pub(super) fn broken(error: ServiceError) -> ClientError {
    let message = format!("the response violates the protocol: {}", error.message());
    ClientError::new(ErrorKind::Protocol, message).caused_by(error)
}

/// Extracts the message of an error body: `error` in this protocol, `detail` from `FastAPI` servers (a
/// string, or a list of problems with their locations), `message` from some proxies.
fn self_described(json: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(one_line);
    if let Some(error) = json.get("error") {
        // Istio and some other servers nest the message one level deeper.
        return text(error).or_else(|| text(error.get("message")?));
    }
    let detail = json.get("detail").or(json.get("message"))?;
    if let Some(text) = text(detail) {
        return Some(text);
    }
    let each = detail.as_array()?.iter().filter_map(|entry| {
        let path = entry.get("loc").and_then(Value::as_array).into_iter().flatten();
        let path: Vec<String> = path
            .map(|part| text(part).unwrap_or_else(|| part.to_string()))
            .collect();
        Some(format!("{}: {}", path.join("."), text(entry.get("msg")?)?))
    });
    let each: Vec<String> = each.take(3).collect();
    (!each.is_empty()).then(|| each.join("; "))
}

/// Shortens text from a server to one line.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().filter(|char| !char.is_control()));
        if line.chars().count() > SHOWN * 4 {
            break;
        }
    }
    match line.char_indices().nth(SHOWN * 4) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Maps an HTTP status to the protocol's error code, for any server. OVMS sends 406 and 412 for malformed
/// requests, `FastAPI` servers 422, proxies 502 for a server that is down.
fn code(status: u16) -> Option<ErrorCode> {
    let of_this_protocol = ErrorCode::ALL
        .into_iter()
        .find(|code| code.http_status() == status);
    of_this_protocol.or(match status {
        406 | 409 | 411 | 412 | 414 | 422 | 431 => Some(ErrorCode::InvalidArgument),
        405 => Some(ErrorCode::Unimplemented),
        502 => Some(ErrorCode::Unavailable),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Response {
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| {
            map.insert(*name, value.parse().unwrap());
        });
        Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers: map,
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    fn refusal(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> ClientError {
        answer(status, headers, body).success().unwrap_err()
    }

    #[test]
    fn refusals_of_all_servers_are_readable() {
        let long = "x".repeat(5000);
        for (status, body, code, message) in [
            (
                404,
                r#"{"error":"Request for unknown model: 'zz' is not found"}"#,
                Some(ErrorCode::NotFound),
                "Request for unknown model: 'zz' is not found",
            ),
            (
                422,
                r#"{"detail":[{"loc":["body","inputs",0,"shape"],"msg":"field required","type":"missing"}]}"#,
                Some(ErrorCode::InvalidArgument),
                "body.inputs.0.shape: field required",
            ),
            (
                404,
                r#"{"detail":"Not Found"}"#,
                Some(ErrorCode::NotFound),
                "Not Found",
            ),
            (
                500,
                r#"{"error":{"message":"wrapped"}}"#,
                Some(ErrorCode::Internal),
                "wrapped",
            ),
            (
                401,
                r#"{"message":"no key"}"#,
                Some(ErrorCode::Unauthenticated),
                "no key",
            ),
            (400, r#"["odd"]"#, Some(ErrorCode::InvalidArgument), r#"["odd"]"#),
            (
                503,
                "",
                Some(ErrorCode::Unavailable),
                "Service Unavailable, without an explanation",
            ),
            (
                502,
                "<html><head><title>502 Bad\nGateway</title>",
                Some(ErrorCode::Unavailable),
                "Bad Gateway, from a web page (502 Bad Gateway)",
            ),
            (
                500,
                "Traceback (most recent\n call last)\u{1b}[31m",
                Some(ErrorCode::Internal),
                "Traceback (most recent call last)[31m",
            ),
            (418, &long, None, &(long[..800].to_owned() + "…")),
        ] {
            let error = refusal(status, &[], body);
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert_eq!((error.code(), error.message()), (code, message));
            assert_eq!(error.status(), Some(Status::Http(status)));
        }
        let moved = refusal(301, &[("location", "https://a/v2")], "");
        assert_eq!(
            moved.message(),
            "the server is at https://a/v2; redirects are not followed"
        );
    }

    #[test]
    fn retry_after_is_read_in_seconds() {
        let after = |value| refusal(503, &[("retry-after", value)], "").retry_delay();
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("Fri, 31 Dec 1999 23:59:59 GMT"), None);
        assert_eq!(after("-1"), None);
    }

    #[test]
    fn health_is_told_in_every_servers_way() {
        let health = |status, body: &str| answer(status, &[], body).health();
        for (status, body, well) in [
            (200, "", true),
            (200, r#"{"live":true,"ready":true}"#, true),
            (200, r#"{"live":true,"ready":false}"#, false),
            (200, r#"{"live":false}"#, false),
            (200, r#"{"name":"m","ready":true}"#, true),
            (200, "true", true),
            (400, "", false),
            (
                503,
                r#"{"live":true,"ready":false,"error":"models not ready: a"}"#,
                false,
            ),
            (500, "", false),
        ] {
            assert_eq!(health(status, body).unwrap(), well, "{status} {body}");
        }
        assert_eq!(health(404, "").unwrap_err().code(), Some(ErrorCode::NotFound));
        let page = health(200, "<!DOCTYPE html><title>Welcome</title>").unwrap_err();
        assert_eq!(page.kind(), ErrorKind::Protocol);
        assert!(page.message().contains("a web page (Welcome)"), "{page}");
    }
}
