//! Why a run gave no outputs.

use std::{error, fmt};

/// Why a run gave no outputs.
#[derive(Debug)]
pub struct RunError {
    kind: RunErrorKind,
    message: String,
    source: Option<Source>,
}

type Source = Box<dyn error::Error + Send + Sync>;

/// What a [`RunError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// The inputs have values or sizes that the model cannot take.
    InvalidInput,
    /// There is no memory for its values now. Later there may be.
    NoMemory,
    /// It was cancelled.
    Cancelled,
    /// The model or this crate is at fault.
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

    /// What it is about.
    #[must_use]
    pub fn kind(&self) -> RunErrorKind {
        self.kind
    }

    /// The cause, such as the error of an operator.
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
