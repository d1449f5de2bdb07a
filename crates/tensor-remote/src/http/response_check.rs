//! Checks that responses match their requests.

use std::{ops::Range, time::Duration};

use fmt_core::{Error, ErrorKind};
use ureq::http::{HeaderMap, StatusCode};

/// The part of a file to request.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// The first `n` bytes, or the whole file if it is shorter.
    Front(u64),
    /// Exactly the bytes in this range, which is not empty.
    Range(Range<u64>),
}

impl Ask {
    /// Returns the `Range` header.
    pub(crate) fn header(&self) -> String {
        match self {
            Self::Front(len) => format!("bytes=0-{}", len.saturating_sub(1)),
            Self::Range(range) => format!("bytes={}-{}", range.start, range.end - 1),
        }
    }

    /// Returns the range within a file of `len` bytes.
    fn within(&self, len: u64) -> Range<u64> {
        match self {
            Self::Front(most) => 0..len.min(*most),
            Self::Range(range) => range.clone(),
        }
    }
}

/// Identifies the version of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) len: u64,
    etag: Option<String>,
    modified: Option<String>,
}

impl Identity {
    fn of(headers: &HeaderMap, len: u64) -> Self {
        let text = |name| headers.get(name)?.to_str().ok().map(str::to_owned);
        Self {
            len,
            etag: text("etag"),
            modified: text("last-modified"),
        }
    }

    /// Returns the server's identifier of this version, if it has one.
    pub(crate) fn version(&self) -> Option<&str> {
        self.etag.as_deref().or(self.modified.as_deref())
    }

    /// Returns the value for `If-Range`, where weak entity tags are not allowed.
    pub(crate) fn condition(&self) -> Option<&str> {
        match &self.etag {
            Some(etag) => Some(etag.as_str()).filter(|etag| etag.starts_with('"')),
            None => self.modified.as_deref(),
        }
    }

    /// Returns the identifiers in which two versions of the file differ, for the error message.
    fn difference(&self, other: &Self) -> Option<(String, String)> {
        let tag = |identity: &Self| Some(identity.etag.as_deref()?.trim_start_matches("W/").to_owned());
        if self.len != other.len {
            return Some((format!("{} bytes", self.len), format!("{} bytes", other.len)));
        }
        let pair = match (tag(self), tag(other)) {
            (Some(own), Some(others)) => (own, others),
            _ => (self.modified.clone()?, other.modified.clone()?),
        };
        (pair.0 != pair.1).then_some(pair)
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A transient error. `after` is the delay before a retry, if the server gave one.
    Passing { error: Error, after: Option<Duration> },
    /// A permanent error, for which a retry does not help.
    Lasting(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lasting(error)
    }
}

/// Maximum delay that a server can demand.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Checks the head of a response against the request and the known version of the file. Returns the range of
/// the file that the body contains.
pub(crate) fn check(
    status: StatusCode,
    headers: &HeaderMap,
    ask: &Ask,
    known: Option<&Identity>,
) -> Result<(Range<u64>, Identity), Failure> {
    match status.as_u16() {
        206 => {}
        200 => return whole_file(headers, known),
        416 => return no_such_range(headers, known),
        _ => return Err(failure(status, headers)),
    }
    if let Some(encoding) = text(headers, "content-encoding").filter(|encoding| *encoding != "identity") {
        let error = lie("the response is compressed, which was not requested");
        return Err(error.expected("the bytes as they are").found(encoding).into());
    }
    let content_range = text(headers, "content-range");
    let Some((range, len)) = content_range.and_then(content_range_of) else {
        let error = lie("the response does not say which part of the file it is, and how long the file is")
            .expected("Content-Range: bytes FIRST-LAST/LENGTH");
        return Err(error.found(content_range.unwrap_or("none")).into());
    };
    let identity = Identity::of(headers, len);
    is_same(known, &identity)?;
    let wanted = ask.within(len);
    if range != wanted {
        let error = lie("the server sent another part of the file than was requested")
            .expected(format_args!("bytes {} to {}", wanted.start, wanted.end));
        return Err(error
            .found(format_args!("{} to {}", range.start, range.end))
            .into());
    }
    let announced = text(headers, "content-length").and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|announced| announced != range.end - range.start) {
        let error = lie("the response has another length than the part of the file that it claims to be");
        let error = error.expected(range.end - range.start);
        return Err(error.found(announced.unwrap_or(0)).into());
    }
    Ok((range, identity))
}

/// Checks the head of a response to a request for a whole document.
#[cfg(feature = "hub")]
pub(crate) fn check_document(status: StatusCode, headers: &HeaderMap) -> Result<(), Failure> {
    match status.as_u16() {
        200 => Ok(()),
        _ => Err(failure(status, headers)),
    }
}

fn failure(status: StatusCode, headers: &HeaderMap) -> Failure {
    match status.as_u16() {
        408 | 429 | 500 | 502 | 503 | 504 => {
            let seconds = text(headers, "retry-after").and_then(|seconds| seconds.parse().ok());
            Failure::Passing {
                error: Error::new(
                    ErrorKind::Io,
                    format!("the server cannot answer now (status {status})"),
                ),
                after: seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE)),
            }
        }
        _ => refusal(status, headers).into(),
    }
}

fn whole_file(headers: &HeaderMap, known: Option<&Identity>) -> Result<(Range<u64>, Identity), Failure> {
    let len = text(headers, "content-length").and_then(|length| length.parse::<u64>().ok());
    let identity = Identity::of(headers, len.or_else(|| Some(known?.len)).unwrap_or(0));
    is_same(known, &identity)?;
    if known.is_none() && len == Some(0) {
        return Ok((0..0, identity));
    }
    let error = Error::new(
        ErrorKind::Unsupported,
        "the server sends whole files only (status 200 for a range)",
    );
    Err(error
        .expected("a server that answers range requests; or download the file first")
        .into())
}

fn no_such_range(headers: &HeaderMap, known: Option<&Identity>) -> Result<(Range<u64>, Identity), Failure> {
    let range = text(headers, "content-range");
    let len = range.and_then(|range| range.strip_prefix("bytes */")?.parse().ok());
    if let Some(len) = len {
        let identity = Identity::of(headers, len);
        is_same(known, &identity)?;
        if known.is_none() && len == 0 {
            return Ok((0..0, identity));
        }
    }
    let error = lie("the server says that the file does not have the requested part (status 416)");
    Err(error.found(range.unwrap_or("no length")).into())
}

fn is_same(known: Option<&Identity>, found: &Identity) -> Result<(), Error> {
    match known.and_then(|known| known.difference(found)) {
        None => Ok(()),
        Some((expected, found)) => {
            let error = Error::new(
                ErrorKind::Changed,
                "the file on the server has changed since it was opened",
            );
            Err(error.expected(expected).found(found))
        }
    }
}

fn refusal(status: StatusCode, headers: &HeaderMap) -> Error {
    let what = match status.as_u16() {
        401 => "authentication is required (status 401): a token is missing or wrong",
        403 => "access to the file is denied (status 403)",
        404 | 410 => "the server has no such file",
        _ => "the server refuses",
    };
    let error = Error::new(ErrorKind::Io, what);
    // The Hub explains the refusal in this header, for example that a licence must be accepted.
    let reason = text(headers, "x-error-message").map(|reason| reason.chars().take(300).collect::<String>());
    match reason {
        Some(reason) => error.found(format_args!("status {status}: {}", reason.escape_debug())),
        None => error.found(format_args!("status {status}")),
    }
}

/// Creates the error for a redirect without a location, which object stores send to clients that use the
/// wrong region.
pub(crate) fn leads_nowhere(headers: &HeaderMap) -> Error {
    let error = lie("the server redirects and does not say where to");
    match text(headers, "x-amz-bucket-region") {
        Some(region) => error
            .expected("the bucket's region (AWS_REGION)")
            .found(format_args!("a bucket in {}", region.escape_debug())),
        None => error,
    }
}

/// Creates the error for a response that contradicts the request or itself.
fn lie(what: &str) -> Error {
    Error::new(ErrorKind::Malformed, what)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Parses `bytes FIRST-LAST/LENGTH` into range and length.
fn content_range_of(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, len): (u64, u64, u64) = (first.parse().ok()?, last.parse().ok()?, len.parse().ok()?);
    (first <= last && last < len).then(|| (first..last + 1, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_answers() {
        assert_eq!(content_range_of("bytes 0-9/10"), Some((0..10, 10)));
        for wrong in [
            "bytes 0-10/10",
            "bytes 5-4/10",
            "bytes 0-9/*",
            "bytes */10",
            "items 0-9/10",
            "bytes 0-18446744073709551615/18446744073709551615",
            "bytes -1-9/10",
            "",
        ] {
            assert_eq!(content_range_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn versions_of_a_file() {
        let identity = |len, etag: &str, modified: &str| Identity {
            len,
            etag: Some(etag.to_owned()).filter(|tag| !tag.is_empty()),
            modified: Some(modified.to_owned()).filter(|date| !date.is_empty()),
        };
        let one = identity(9, "\"a\"", "Monday");
        assert_eq!(one.condition(), Some("\"a\""));
        assert!(one.difference(&identity(9, "W/\"a\"", "Tuesday")).is_none());
        assert!(one.difference(&identity(8, "\"a\"", "Monday")).is_some());
        assert!(one.difference(&identity(9, "\"b\"", "Monday")).is_some());
        assert!(one.difference(&identity(9, "", "Tuesday")).is_some());
        assert!(one.difference(&identity(9, "", "")).is_none());
        assert_eq!(identity(9, "W/\"a\"", "Monday").condition(), None);
        assert_eq!(identity(9, "", "Monday").condition(), Some("Monday"));
    }
}
