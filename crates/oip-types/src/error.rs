//! The closed list of service errors and its mapping to HTTP and gRPC status codes.

use std::{error::Error, fmt, time::Duration};

use tensor_core::{CastError, SparseError, SpecError};

/// The error codes of requests, as one closed list for both transports.
///
/// [`ErrorCode::http_status`] and [`ErrorCode::grpc_code`] map a code to the status that clients see.
///
/// ```
/// use oip_types::ErrorCode;
///
/// assert_eq!(ErrorCode::Overloaded.http_status(), 429);
/// assert_eq!(ErrorCode::Overloaded.grpc_code(), 8); // RESOURCE_EXHAUSTED
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request is malformed or does not fit the model. Retrying does not help.
    InvalidArgument,
    /// The client sent no credentials, or invalid ones.
    Unauthenticated,
    /// The client is not allowed to make this request.
    PermissionDenied,
    /// The model, version or resource does not exist.
    NotFound,
    /// The body or message is larger than the server accepts.
    TooLarge,
    /// The body's compression is not supported.
    UnsupportedEncoding,
    /// The server does not offer this operation.
    Unimplemented,
    /// A queue or a memory budget is full. Retry later.
    Overloaded,
    /// The model or the server is not ready. Retry later.
    Unavailable,
    /// The request arrived too slowly.
    SlowRequest,
    /// The deadline passed before the response was ready.
    DeadlineExceeded,
    /// The client disconnected or cancelled the request.
    Cancelled,
    /// The model failed, or the server has a bug.
    Internal,
}

impl ErrorCode {
    /// All codes, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::InvalidArgument,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::NotFound,
        Self::TooLarge,
        Self::UnsupportedEncoding,
        Self::Unimplemented,
        Self::Overloaded,
        Self::Unavailable,
        Self::SlowRequest,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Internal,
    ];

    /// Returns the HTTP status for this code.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        self.row().0
    }

    /// Returns the gRPC status for this code.
    #[must_use]
    pub const fn grpc_code(self) -> i32 {
        self.row().1
    }

    /// Returns whether the same request may succeed later. If so, HTTP responses carry `Retry-After`.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Overloaded | Self::Unavailable)
    }

    /// Maps each code to its HTTP status and gRPC code.
    const fn row(self) -> (u16, i32) {
        match self {
            Self::InvalidArgument => (400, 3),      // INVALID_ARGUMENT
            Self::Unauthenticated => (401, 16),     // UNAUTHENTICATED
            Self::PermissionDenied => (403, 7),     // PERMISSION_DENIED
            Self::NotFound => (404, 5),             // NOT_FOUND
            Self::TooLarge => (413, 8),             // RESOURCE_EXHAUSTED
            Self::UnsupportedEncoding => (415, 12), // UNIMPLEMENTED
            Self::Unimplemented => (501, 12),       // UNIMPLEMENTED
            Self::Overloaded => (429, 8),           // RESOURCE_EXHAUSTED
            Self::Unavailable => (503, 14),         // UNAVAILABLE
            Self::SlowRequest => (408, 4),          // DEADLINE_EXCEEDED
            Self::DeadlineExceeded => (504, 4),     // DEADLINE_EXCEEDED
            Self::Cancelled => (499, 1),            // CANCELLED
            Self::Internal => (500, 13),            // INTERNAL
        }
    }
}

/// An error to send to a client: a code for programs, a message for people, and a cause for the log.
///
/// The message names the subject (model, input), the expected value and the value found. Clients see only the
/// message; the cause is logged.
///
/// ```
/// use oip_types::{ErrorCode, ServiceError};
///
/// let error = ServiceError::invalid("expected 4 elements, found 3").within("input 'x'").within("model 'm'");
/// assert_eq!(error.code(), ErrorCode::InvalidArgument);
/// assert_eq!(error.to_string(), "model 'm': input 'x': expected 4 elements, found 3");
/// ```
#[derive(Debug)]
pub struct ServiceError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: ErrorCode,
    message: String,
    retry_after: Option<Duration>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ServiceError {
    /// Maximum message length in bytes. Longer messages are truncated, which keeps error responses small.
    pub const MAX_MESSAGE: usize = 700;

    /// Creates an error with a code and a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut error = Self(Box::new(Inner {
            code,
            message: message.into(),
            retry_after: None,
            source: None,
        }));
        error.cut();
        error
    }

    /// Creates an [`ErrorCode::InvalidArgument`] error.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// Creates an [`ErrorCode::Internal`] error.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// Prefixes the message with `context: `.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self.cut();
        self
    }

    /// Attaches a cause for the log; clients do not see it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Sets the delay after which a retry may succeed.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// Returns the code, for programs.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Returns the message, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the delay before a retry: one second for retryable codes, unless [`ServiceError::retry_after`]
    /// has set another delay.
    #[must_use]
    pub fn retry_delay(&self) -> Option<Duration> {
        let default = self.0.code.is_retryable().then_some(Duration::from_secs(1));
        self.0.retry_after.or(default)
    }

    /// Returns the message and all causes in one line, for the log.
    #[must_use]
    pub fn report(&self) -> String {
        causes(self)
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ")
    }

    fn cut(&mut self) {
        let message = &mut self.0.message;
        if message.len() > Self::MAX_MESSAGE {
            let end = message.floor_char_boundary(Self::MAX_MESSAGE - '…'.len_utf8());
            message.truncate(end);
            message.push('…');
        }
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl Error for ServiceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}

/// Maps to [`Internal`](ErrorCode::Internal), because a model or a service created the tensor. Tensors from
/// clients are checked where they are decoded.
impl From<SpecError> for ServiceError {
    fn from(error: SpecError) -> Self {
        Self::internal(error.to_string())
    }
}

/// Maps to [`Internal`](ErrorCode::Internal), because a request's tensors were already checked.
impl From<CastError> for ServiceError {
    fn from(error: CastError) -> Self {
        Self::internal(error.to_string())
    }
}

/// Maps to [`Internal`](ErrorCode::Internal), like a [`SpecError`].
impl From<SparseError> for ServiceError {
    fn from(error: SparseError) -> Self {
        Self::internal(error.to_string())
    }
}

/// Returns an error and the chain of its sources.
pub fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded() {
        let error = ServiceError::invalid("ä".repeat(10_000)).within("x".repeat(100));
        assert!(error.message().len() <= ServiceError::MAX_MESSAGE);
        assert!(error.message().ends_with('…'));
    }

    #[test]
    fn reports_name_every_cause() {
        let cause = ServiceError::internal("disk full").caused_by(std::io::Error::other("EIO"));
        let error = ServiceError::internal("cannot answer").caused_by(cause);
        assert_eq!(error.report(), "cannot answer: disk full: EIO");
        assert_eq!(error.to_string(), "cannot answer");
    }

    #[test]
    fn retryable_codes_say_when() {
        for code in ErrorCode::ALL {
            let error = ServiceError::new(code, "x");
            assert_eq!(error.retry_delay().is_some(), code.is_retryable());
        }
        let error = ServiceError::new(ErrorCode::Overloaded, "x").retry_after(Duration::from_secs(7));
        assert_eq!(error.retry_delay(), Some(Duration::from_secs(7)));
    }
}
