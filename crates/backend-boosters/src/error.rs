//! The error of reading a model's file.

use std::fmt;

/// Why a file cannot be served: it is damaged, or uses unsupported features. The message contains the fault,
/// its position, and a remedy.
#[derive(Debug)]
pub(crate) struct Refusal(String);

impl Refusal {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// Prefixes the message with `context: `.
    pub(crate) fn within(self, context: impl fmt::Display) -> Self {
        Self(format!("{context}: {}", self.0))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<tree_eval::TreeError> for Refusal {
    fn from(error: tree_eval::TreeError) -> Self {
        Self(error.to_string())
    }
}
