use std::{error::Error, fmt, time::Duration};

use oip_types::ErrorCode;

/// Why a call failed.
///
/// [`ClientError::kind`] is for programs, the message for people: it says which server, what was expected and what was
/// found.
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
    /// The server says that another try will not help.
    is_final: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What sort of failure a [`ClientError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Invalid or unsupported usage: a malformed URL, TLS, a stream over HTTP.
    Usage,
    /// The request has no form in which it could be sent, such as bytes that are not UTF-8 in JSON.
    Request,
    /// There was no connection to send the request on. The server never saw it.
    Connect,
    /// No answer came in time. The server may or may not have done the work.
    Timeout,
    /// The connection broke after some of the request may have been sent, or in the middle of the answer.
    Broken,
    /// The server answered that it would not or could not: see [`ClientError::code`] and [`ClientError::status`].
    Refused,
    /// The answer is not what the protocol says, or not of this protocol at all.
    Protocol,
    /// The answer is larger than the client takes.
    TooLarge,
    /// The caller of a blocking call ended it: see [`Patience::unless`](crate::Patience::unless).
    Interrupted,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A transport's number for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// A status of HTTP, such as 404.
    Http(u16),
    /// A code of gRPC, such as 5 (`NOT_FOUND`).
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

/// Returns the names of gRPC's codes, by their number.
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

    /// Returns the server refused.
    pub(crate) fn refused(code: Option<ErrorCode>, status: Status, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Refused, message);
        (error.0.code, error.0.status) = (code, Some(status));
        error
    }

    /// Returns the answer has more bytes than the client takes.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the answer is larger than {limit} bytes, the client's limit");
        Self::new(ErrorKind::TooLarge, message)
    }

    /// Creates a call took as long as it may.
    pub(crate) fn out_of_time(timeout: Duration) -> Self {
        Self::new(ErrorKind::Timeout, format!("no answer within {timeout:?}"))
    }

    /// Says which server it is about.
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

    /// Returns whether the server asks for no more attempts.
    #[cfg(any(feature = "grpc", test))]
    #[must_use]
    pub(crate) fn finally(mut self, is_final: bool) -> Self {
        self.0.is_final = is_final;
        self
    }

    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the code of a refusal, if the protocol has one for it. Servers differ in the numbers that they
    /// use; those of other servers are read with care for what they mean there.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        self.0.code
    }

    /// Returns the number that a refusal came with.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.0.status
    }

    /// Returns the message without the server's address.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// When the server says that trying again may help.
    #[must_use]
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns whether time was over, be it this client's or the server's.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.0.kind == ErrorKind::Timeout || self.0.code == Some(ErrorCode::DeadlineExceeded)
    }

    /// Returns whether the server took nothing on and asks for patience: too busy, or not ready.
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
