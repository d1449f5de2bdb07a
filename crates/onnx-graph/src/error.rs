//! Errors that explain why a file is refused.

use std::fmt;

/// What is wrong with a file, and where.
///
/// The message names the node, tensor or value. Names from the file are quoted and truncated.
///
/// ```
/// use onnx_graph::ErrorKind;
///
/// let error = onnx_graph::decode(&b"\x0a\xff".as_slice().into()).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(error.to_string().starts_with("the file is not an ONNX model, or it is damaged or cut off"));
/// ```
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The file is damaged, contradicts itself or exceeds a limit. No runtime should load it.
    Invalid,
    /// The file is valid, but uses an operator that this crate does not implement. ONNX Runtime implements
    /// the operator.
    Unsupported,
    /// Neither this crate nor ONNX Runtime implements the operator.
    UnsupportedAnywhere,
}

impl Error {
    /// Creates an error with this category and message.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            source: None,
        }))
    }

    /// Creates an error of kind [`ErrorKind::Invalid`].
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Prefixes the message with `context` and a colon.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// Sets the error that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns the category of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the source of this error, for a caller that converts the error into another type.
    #[must_use]
    pub fn into_source(self) -> Option<Box<dyn std::error::Error + Send + Sync>> {
        self.0.source
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}
