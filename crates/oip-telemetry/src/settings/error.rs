//! The error for wrong settings of exports.

use std::fmt;

/// A wrong setting or environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// A field of [`ExportSettings`](super::ExportSettings) is wrong. The message names it.
    Setting(String),
    /// An environment variable is wrong. The message names it.
    Variable(String),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(message) | Self::Variable(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for SettingsError {}
