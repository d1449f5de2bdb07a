//! The errors with which a run can fail.

use std::{error, fmt};

/// The error of a failed run: its category, and a message for the client.
#[derive(Debug)]
pub struct RunError {
    kind: RunErrorKind,
    message: String,
    source: Option<Source>,
}

type Source = Box<dyn error::Error + Send + Sync>;

/// The category of a [`RunError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// The model does not accept the inputs' values or sizes.
    InvalidInput,
    /// The memory for the run's values is exhausted now. A retry may succeed.
    NoMemory,
    /// The run was cancelled.
    Cancelled,
    /// The run failed because of a bug in the model or in this crate.
    Failed,
}

impl RunError {
    pub(crate) fn new(kind: RunErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn values(reason: &str) -> Self {
        let message = format!("the model cannot take these values: {reason}");
        Self::new(RunErrorKind::InvalidInput, message)
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(RunErrorKind::Cancelled, "the run was cancelled")
    }

    pub(crate) fn within(mut self, context: &str) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    pub(crate) fn caused_by(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the category of the error.
    #[must_use]
    pub fn kind(&self) -> RunErrorKind {
        self.kind
    }

    /// Returns the error that caused this one, such as the error of an operator.
    #[must_use]
    pub fn into_source(self) -> Option<Box<dyn error::Error + Send + Sync>> {
        self.source
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl error::Error for RunError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        let source = self.source.as_ref()?;
        Some(&**source)
    }
}
