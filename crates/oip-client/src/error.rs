//! Errors of client calls, by kind.

use std::{error::Error, fmt, time::Duration};

use oip_types::ErrorCode;

/// The error of a failed call.
///
/// [`ClientError::kind`] is for programs; the message is for people and names the server, the expected value
/// and the value found.
///
/// ```
/// use oip_client::{ErrorKind, HttpClient};
///
/// let error = HttpClient::builder("ftp://localhost").build().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Usage);
/// assert!(error.to_string().starts_with("ftp://localhost: "));
/// ```
#[derive(Debug)]
pub struct ClientError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    url: String,
    code: Option<ErrorCode>,
    status: Option<Status>,
    retry_after: Option<Duration>,
    /// Whether the server reported that a retry would not help.
    is_final: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// The kind of a [`ClientError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Invalid or unsupported usage: a malformed URL, invalid TLS settings, a stream over HTTP.
    Usage,
    /// The request cannot be encoded, for example bytes that are not UTF-8 in JSON.
    Request,
    /// The connection could not be opened. The server never saw the request.
    Connect,
    /// The call timed out. The server may or may not have done the work.
    Timeout,
    /// The connection broke after part of the request may have been sent, or in the middle of the response.
    Broken,
    /// The server responded with an error: see [`ClientError::code`] and [`ClientError::status`].
    Refused,
    /// The response violates the protocol, or is not of this protocol at all.
    Protocol,
    /// The response is larger than the client's limit.
    TooLarge,
    /// The caller of a blocking call interrupted it: see [`Patience::unless`](crate::Patience::unless).
    Interrupted,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The transport's status code of an error response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// An HTTP status, such as 404.
    Http(u16),
    /// A gRPC status code, such as 5 (`NOT_FOUND`).
    Grpc(i32),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(status) => write!(f, "HTTP {status}"),
            Self::Grpc(code) => write!(f, "gRPC {}", grpc_name(*code)),
        }
    }
}

/// Returns the name of a gRPC status code.
fn grpc_name(code: i32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    usize::try_from(code)
        .ok()
        .and_then(|code| NAMES.get(code))
        .unwrap_or(&"UNKNOWN")
}

impl ClientError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            url: String::new(),
            code: None,
            status: None,
            retry_after: None,
            is_final: false,
            source: None,
        }))
    }

    /// Creates the error for an error response of the server.
    pub(crate) fn refused(code: Option<ErrorCode>, status: Status, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Refused, message);
        (error.0.code, error.0.status) = (code, Some(status));
        error
    }

    /// Creates the error for a response larger than `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the response is larger than {limit} bytes, the client's limit");
        Self::new(ErrorKind::TooLarge, message)
    }

    /// Creates the error for a call that timed out.
    pub(crate) fn out_of_time(timeout: Duration) -> Self {
        Self::new(ErrorKind::Timeout, format!("no response within {timeout:?}"))
    }

    /// Adds the server's URL to the message.
    #[must_use]
    pub(crate) fn at(mut self, url: &str) -> Self {
        url.clone_into(&mut self.0.url);
        self
    }

    #[must_use]
    pub(crate) fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    #[must_use]
    pub(crate) fn retry_after(mut self, delay: Option<Duration>) -> Self {
        self.0.retry_after = delay;
        self
    }

    /// Sets whether the server asked not to retry.
    #[cfg(any(feature = "grpc", test))]
    #[must_use]
    pub(crate) fn finally(mut self, is_final: bool) -> Self {
        self.0.is_final = is_final;
        self
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the protocol's error code of an error response, if any. The mapping from status codes accounts
    /// for servers that use them differently.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        self.0.code
    }

    /// Returns the transport's status of an error response.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.0.status
    }

    /// Returns the message without the server's URL.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the delay before a retry, if the server sent one.
    #[must_use]
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns whether the call timed out, either in this client or on the server.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.0.kind == ErrorKind::Timeout || self.0.code == Some(ErrorCode::DeadlineExceeded)
    }

    /// Returns whether the server did not start the work and asks to retry later: it is overloaded or not
    /// ready.
    pub(crate) fn is_refused_for_now(&self) -> bool {
        let statuses = [
            Status::Http(429),
            Status::Http(503),
            Status::Grpc(8),
            Status::Grpc(14),
        ];
        let is_too_large = self.0.code == Some(ErrorCode::TooLarge);
        self.0.status.is_some_and(|status| statuses.contains(&status)) && !is_too_large && !self.0.is_final
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            message, url, status, ..
        } = &*self.0;
        if !url.is_empty() {
            write!(f, "{url}: ")?;
        }
        f.write_str(message)?;
        match status {
            Some(status) => write!(f, " ({status})"),
            None => Ok(()),
        }
    }
}

impl Error for ClientError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}
